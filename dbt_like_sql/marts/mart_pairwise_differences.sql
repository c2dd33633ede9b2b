-- Paired differences of utility between every two policies of a pool, with their error over trials and queries together,
-- and p-values adjusted (Holm) for all pairs of real routers, so that a winner picked after the fact may be named.
WITH trials AS (
  SELECT
    pool, regime, a.policy, b.policy AS baseline,
    avg(a.utility - b.utility) AS difference,
    standard_error_of(a.utility - b.utility) AS se_trials,
    count(*) AS trials
  FROM {{ ref('stg_trial_by_regime') }} AS a
  JOIN {{ ref('stg_trial_by_regime') }} AS b USING (pool, regime, trial)
  WHERE a.policy < b.policy
  GROUP BY ALL
),
queries AS (
  SELECT
    pool, regime, a.policy, b.policy AS baseline,
    query_error(a.plays * (a.utility - b.utility), a.plays::DOUBLE, a.cluster, query_index) AS over_queries
  FROM {{ ref('stg_query_by_regime') }} AS a
  JOIN {{ ref('stg_query_by_regime') }} AS b USING (pool, regime, query_index)
  WHERE a.policy < b.policy
  GROUP BY ALL
),
combined AS (
  SELECT *, with_trials(over_queries, se_trials, trials) AS error
  FROM trials
  LEFT JOIN queries USING (pool, regime, policy, baseline)
),
tested AS (
  SELECT *, two_sided_p_value(difference, error) AS p_value
  FROM combined
),
real_routers AS (
  SELECT DISTINCT pool, policy FROM {{ ref('stg_replay_runs') }} WHERE is_current AND kind <> 'upper bound'
),
families AS (
  SELECT
    t.pool, t.regime,
    list(t.policy ORDER BY t.policy, t.baseline) AS policies,
    list(t.baseline ORDER BY t.policy, t.baseline) AS baselines,
    holm(list(t.p_value ORDER BY t.policy, t.baseline)) AS adjusted
  FROM tested AS t
  SEMI JOIN real_routers AS a ON t.pool = a.pool AND t.policy = a.policy
  SEMI JOIN real_routers AS b ON t.pool = b.pool AND t.baseline = b.policy
  WHERE t.p_value IS NOT NULL
  GROUP BY t.pool, t.regime
),
adjusted AS (
  SELECT pool, regime, unnest(policies) AS policy, unnest(baselines) AS baseline, unnest(adjusted) AS p_adjusted
  FROM families
),
one_way AS (
  SELECT *, difference - error.half_width AS low, difference + error.half_width AS high
  FROM tested LEFT JOIN adjusted USING (pool, regime, policy, baseline)
),
both_ways AS (
  SELECT * FROM one_way
  UNION ALL BY NAME
  SELECT * REPLACE (baseline AS policy, policy AS baseline, -difference AS difference, -high AS low, -low AS high) FROM one_way
)
SELECT
  pool,
  regime,
  policy,
  baseline,
  difference,
  se_trials,
  over_queries.se AS se_queries,
  error.se AS se,
  low,
  high,
  p_value,
  p_adjusted,
  p_value < 0.05 AS significant,
  p_adjusted < 0.05 AS significant_adjusted,
  trials
FROM both_ways
ORDER BY pool, regime, policy, baseline
