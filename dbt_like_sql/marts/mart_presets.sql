-- The three readings of every CABS policy side by side: as printed, as it works, as tuned.
SELECT
  pool,
  base_policy,
  regime,
  max(utility) FILTER (preset = 'literal') AS literal,
  max(utility_se) FILTER (preset = 'literal') AS literal_se,
  max(utility) FILTER (preset = 'paper') AS paper,
  max(utility_se) FILTER (preset = 'paper') AS paper_se,
  max(utility) FILTER (preset = 'tuned') AS tuned,
  max(utility_se) FILTER (preset = 'tuned') AS tuned_se
FROM {{ ref('mart_utility_by_regime') }}
WHERE base_policy IN ('cabs_c_linear', 'cabs_d_linear', 'cabs_c_neural', 'cabs_d_neural')
GROUP BY pool, base_policy, regime
ORDER BY pool, base_policy, regime
