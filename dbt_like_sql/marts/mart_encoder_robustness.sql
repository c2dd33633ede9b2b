-- Pools that ask the same question with another encoder: does the order of the policies survive?
WITH groups AS (
  SELECT comparison_group
  FROM {{ ref('stg_pools') }}
  WHERE encoder IS NOT NULL
  GROUP BY comparison_group
  HAVING count(DISTINCT encoder) > 1
)
SELECT
  p.comparison_group,
  u.pool,
  p.encoder,
  u.policy,
  u.kind,
  u.regime,
  u.utility,
  u.utility_se,
  u.rank
FROM {{ ref('mart_utility_by_regime') }} AS u
JOIN {{ ref('stg_pools') }} AS p ON u.pool = p.pool
SEMI JOIN groups AS g ON p.comparison_group = g.comparison_group
WHERE u.complete
ORDER BY p.comparison_group, u.regime, u.policy, p.encoder, u.pool
