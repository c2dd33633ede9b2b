-- Our figures beside the paper's where the pool is one of its benchmarks. Ours: the policy's default preset, and for
-- utility the unclipped one, which the published figures fit (score - rho x cost can be below zero; clipped it cannot).
WITH ours AS (
  SELECT
    pool, base_policy, regime,
    unnest(['utility', 'regret']) AS metric,
    unnest([utility_unclipped, regret]) AS value,
    unnest([utility_unclipped_se, regret_se]) AS se
  FROM {{ ref('mart_utility_by_regime') }}
  WHERE policy = base_policy
)
SELECT
  o.pool,
  p.paper_benchmark AS benchmark,
  x.encoder AS paper_encoder,
  o.base_policy AS policy,
  o.regime,
  o.metric,
  o.value AS ours,
  o.se AS ours_se,
  x.value AS paper,
  o.value - x.value AS difference,
  rank() OVER (PARTITION BY o.pool, x.encoder, o.regime, o.metric
               ORDER BY CASE WHEN o.metric = 'regret' THEN -o.value ELSE o.value END DESC) AS our_rank,
  rank() OVER (PARTITION BY o.pool, x.encoder, o.regime, o.metric
               ORDER BY CASE WHEN o.metric = 'regret' THEN -x.value ELSE x.value END DESC) AS paper_rank,
  x.label AS paper_table
FROM ours AS o
JOIN {{ ref('stg_pools') }} AS p ON o.pool = p.pool
JOIN {{ source('paper', 'published') }} AS x
  ON x.benchmark = p.paper_benchmark AND x.policy = o.base_policy AND x.regime = o.regime AND x.metric = o.metric
ORDER BY o.pool, x.encoder, o.metric DESC, o.regime, paper_rank, o.base_policy
