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
    u.utility_se_trials,
    u.rank,
    u.trials,
    -- the same rhos, not merely as many
    struct_pack(n := u.rhos, v := u.rho_values)
      = max(struct_pack(n := u.rhos, v := u.rho_values)) OVER (PARTITION BY p.comparison_group, u.regime) AS same_rhos
  FROM {{ ref('mart_utility_by_regime') }} AS u
  JOIN {{ ref('stg_pools') }} AS p ON u.pool = p.pool
  WHERE p.encoder IS NOT NULL
),
groups AS (
  SELECT comparison_group, regime
  FROM candidates
  WHERE same_rhos
  GROUP BY comparison_group, regime
  HAVING count(DISTINCT encoder) > 1
),
compared AS (
  SELECT c.*, min(c.pool) OVER (PARTITION BY c.comparison_group, c.regime) AS baseline_pool
  FROM candidates AS c
  SEMI JOIN groups AS g ON c.comparison_group = g.comparison_group AND c.regime = g.regime
  WHERE c.same_rhos
),
-- Pools of a group hold the same queries under the same index, but each has its own orders: paired by query only.
queries AS (
  SELECT
    c.pool, c.policy, c.regime,
    query_error(a.plays * (a.utility - b.utility), a.plays::DOUBLE, a.cluster, a.query_index) AS over_queries
  FROM compared AS c
  JOIN {{ ref('stg_query_by_regime') }} AS a USING (pool, policy, regime)
  JOIN {{ ref('stg_query_by_regime') }} AS b USING (policy, regime, query_index)
  WHERE b.pool = c.baseline_pool AND c.pool <> c.baseline_pool
  GROUP BY c.pool, c.policy, c.regime
),
differences AS (
  SELECT
    c.*,
    CASE WHEN c.pool <> c.baseline_pool THEN c.utility - b.utility END AS difference,
    with_trials(
      q.over_queries, sqrt(c.utility_se_trials ** 2 + b.utility_se_trials ** 2), least(c.trials, b.trials)
    ) AS error
  FROM compared AS c
  LEFT JOIN compared AS b ON c.baseline_pool = b.pool AND c.policy = b.policy AND c.regime = b.regime
  LEFT JOIN queries AS q ON c.pool = q.pool AND c.policy = q.policy AND c.regime = q.regime
)
SELECT
  comparison_group,
  pool,
  encoder,
  policy,
  kind,
  regime,
  utility,
  utility_se,
  rank,
  baseline_pool,
  difference,
  CASE WHEN difference IS NOT NULL THEN error.se END AS difference_se,
  two_sided_p_value(difference, error) < 0.05 AS significant
FROM differences
ORDER BY comparison_group, regime, policy, encoder, pool
