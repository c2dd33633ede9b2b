-- Paired differences of utility between every two policies of a pool, with their error over trials and queries together,
-- and p-values adjusted (Holm) for all pairs of real routers, so that a winner picked after the fact may be named.
WITH pairs AS (
  SELECT a.pool, a.regime, a.policy, b.policy AS baseline
  FROM (SELECT DISTINCT pool, regime, policy FROM {{ ref('stg_trial_by_regime') }}) AS a
  JOIN (SELECT DISTINCT pool, regime, policy FROM {{ ref('stg_trial_by_regime') }}) AS b
    ON a.pool = b.pool AND a.regime = b.regime AND a.policy < b.policy
),
trials AS (
  SELECT
    p.pool, p.regime, p.policy, p.baseline,
    avg(a.utility - b.utility) AS difference,
    standard_error_of(a.utility - b.utility) AS se_trials,
    count(*) AS trials
  FROM pairs AS p
  JOIN {{ ref('stg_trial_by_regime') }} AS a
    ON p.pool = a.pool AND p.regime = a.regime AND p.policy = a.policy
  JOIN {{ ref('stg_trial_by_regime') }} AS b
    ON p.pool = b.pool AND p.regime = b.regime AND p.baseline = b.policy AND a.trial = b.trial
  GROUP BY p.pool, p.regime, p.policy, p.baseline
),
queries AS (
  SELECT
    p.pool, p.regime, p.policy, p.baseline,
    bootstrap_ratio_se(
      list(a.plays * (a.utility - b.utility) ORDER BY a.query_index),
      list(a.plays::DOUBLE ORDER BY a.query_index)
    ) AS se_queries,
    count(*) AS queries
  FROM pairs AS p
  JOIN {{ ref('stg_query_by_regime') }} AS a
    ON p.pool = a.pool AND p.regime = a.regime AND p.policy = a.policy
  JOIN {{ ref('stg_query_by_regime') }} AS b
    ON p.pool = b.pool AND p.regime = b.regime AND p.baseline = b.policy AND a.query_index = b.query_index
  GROUP BY p.pool, p.regime, p.policy, p.baseline
),
combined AS (
  SELECT
    t.pool, t.regime, t.policy, t.baseline, t.difference, t.se_trials, q.se_queries, t.trials,
    two_way_error(t.se_trials, q.se_queries, t.trials, q.queries) AS error
  FROM trials AS t
  LEFT JOIN queries AS q
    ON t.pool = q.pool AND t.regime = q.regime AND t.policy = q.policy AND t.baseline = q.baseline
),
tested AS (
  SELECT *, two_sided_p_value(difference, error.se, error.df) AS p_value
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
  SELECT t.*, a.p_adjusted
  FROM tested AS t
  LEFT JOIN adjusted AS a
    ON t.pool = a.pool AND t.regime = a.regime AND t.policy = a.policy AND t.baseline = a.baseline
),
both_ways AS (
  SELECT pool, regime, policy, baseline, difference, se_trials, se_queries, trials, error, p_value, p_adjusted
  FROM one_way
  UNION ALL
  SELECT
    pool, regime, baseline AS policy, policy AS baseline, -difference AS difference, se_trials, se_queries, trials,
    error, p_value, p_adjusted
  FROM one_way
)
SELECT
  pool,
  regime,
  policy,
  baseline,
  difference,
  se_trials,
  se_queries,
  error.se AS se,
  difference - error.margin AS low,
  difference + error.margin AS high,
  p_value,
  p_adjusted,
  p_value < 0.05 AS significant,
  p_adjusted < 0.05 AS significant_adjusted,
  trials
FROM both_ways
ORDER BY pool, regime, policy, baseline
