-- Each query's value of a regime and overall at the rhos that all policies have, mean over trials, and the cluster (independent observation) it belongs to.
{% set figures %}
  max(cluster) AS cluster,
  max(plays) AS plays,
  avg(utility) AS utility,
  avg(utility_unclipped) AS utility_unclipped,
  avg(regret) AS regret
{% endset %}
WITH current_queries AS (
  SELECT
    q.pool, r.regime, q.policy, q.query_index, q.cluster, q.plays, q.utility, q.regret,
    -- with a weight on latency the mean over trials of score and cost does not tell it
    CASE WHEN p.latency_weight = 0 THEN q.score - q.rho * q.cost END AS utility_unclipped
  FROM {{ source('replay', 'queries') }} AS q
  JOIN {{ ref('stg_replay_runs') }} AS r ON q.pool = r.pool AND q.rho = r.rho AND q.policy = r.policy
  JOIN {{ ref('stg_pools') }} AS p ON q.pool = p.pool
  WHERE r.is_compared
),
by_regime AS (
  SELECT
    pool, policy, regime, query_index,
    {{ figures }}
  FROM current_queries
  GROUP BY ALL
),
both_levels AS (
  SELECT * REPLACE (unnest([regime, 'overall']) AS regime) FROM by_regime
)
SELECT
  pool, policy, regime, query_index,
  {{ figures }}
FROM both_levels
GROUP BY ALL
ORDER BY pool, policy, regime, query_index
