-- Whatever is ranked together was replayed at the same rhos.
SELECT pool, regime, count(DISTINCT rho_values) AS sets
FROM {{ ref('mart_utility_by_regime') }}
GROUP BY pool, regime
HAVING count(DISTINCT rho_values) > 1
