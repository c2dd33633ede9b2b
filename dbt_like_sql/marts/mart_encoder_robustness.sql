-- Pools that ask the same question with another encoder, over the same rhos: does the order of the policies survive?
WITH candidates AS (
  SELECT
    p.comparison_group,
    u.pool,
    p.encoder,
    u.policy,
    u.kind,
    u.regime,
    u.utility,
    u.utility_se,
    u.rank,
    u.rhos = max(u.rhos) OVER (PARTITION BY p.comparison_group, u.regime) AS same_rhos
  FROM {{ ref('mart_utility_by_regime') }} AS u
  JOIN {{ ref('stg_pools') }} AS p ON u.pool = p.pool
  WHERE u.complete AND p.encoder IS NOT NULL
),
groups AS (
  SELECT comparison_group, regime
  FROM candidates
  WHERE same_rhos
  GROUP BY comparison_group, regime
  HAVING count(DISTINCT encoder) > 1
)
SELECT
  c.comparison_group,
  c.pool,
  c.encoder,
  c.policy,
  c.kind,
  c.regime,
  c.utility,
  c.utility_se,
  c.rank
FROM candidates AS c
SEMI JOIN groups AS g ON c.comparison_group = g.comparison_group AND c.regime = g.regime
WHERE c.same_rhos
ORDER BY c.comparison_group, c.regime, c.policy, c.encoder, c.pool
