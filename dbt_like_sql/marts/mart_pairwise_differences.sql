-- Paired differences of utility between every two policies of a pool; the larger standard error counts.
WITH pairs AS (
  SELECT a.pool, a.regime, a.policy, b.policy AS baseline
  FROM (SELECT DISTINCT pool, regime, policy, rhos FROM {{ ref('stg_trial_by_regime') }}) AS a
  JOIN (SELECT DISTINCT pool, regime, policy, rhos FROM {{ ref('stg_trial_by_regime') }}) AS b
    ON a.pool = b.pool AND a.regime = b.regime AND a.rhos = b.rhos AND a.policy < b.policy
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
    ) AS se_queries
  FROM pairs AS p
  JOIN {{ ref('stg_query_by_regime') }} AS a
    ON p.pool = a.pool AND p.regime = a.regime AND p.policy = a.policy
  JOIN {{ ref('stg_query_by_regime') }} AS b
    ON p.pool = b.pool AND p.regime = b.regime AND p.baseline = b.policy AND a.query_index = b.query_index
  GROUP BY p.pool, p.regime, p.policy, p.baseline
),
one_way AS (
  SELECT
    t.pool, t.regime, t.policy, t.baseline, t.difference, t.se_trials, q.se_queries, t.trials
  FROM trials AS t
  LEFT JOIN queries AS q
    ON t.pool = q.pool AND t.regime = q.regime AND t.policy = q.policy AND t.baseline = q.baseline
),
both_ways AS (
  SELECT pool, regime, policy, baseline, difference, se_trials, se_queries, trials FROM one_way
  UNION ALL
  SELECT pool, regime, baseline AS policy, policy AS baseline, -difference AS difference, se_trials, se_queries, trials
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
  greatest(se_trials, se_queries) AS se,
  difference - 1.96 * greatest(se_trials, se_queries) AS low,
  difference + 1.96 * greatest(se_trials, se_queries) AS high,
  abs(difference) > 1.96 * greatest(se_trials, se_queries) AS significant,
  trials
FROM both_ways
ORDER BY pool, regime, policy, baseline
