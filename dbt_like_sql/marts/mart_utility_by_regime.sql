-- Utility and regret by cost regime and overall, with both standard errors (RQ2).
WITH trials AS (
  SELECT
    pool, policy, regime,
    avg(utility) AS utility,
    standard_error_of(utility) AS utility_se_trials,
    avg(utility_unclipped) AS utility_unclipped,
    avg(regret) AS regret,
    standard_error_of(regret) AS regret_se_trials,
    avg(score) AS score,
    1000 * avg(cost) AS cost_per_1000_calls,
    count(*) AS trials,
    max(rhos) AS rhos,
    bool_and(complete) AS complete
  FROM {{ ref('stg_trial_by_regime') }}
  GROUP BY pool, policy, regime
),
queries AS (
  SELECT
    pool, policy, regime,
    bootstrap_ratio_se(list(plays * utility ORDER BY query_index), list(plays::DOUBLE ORDER BY query_index))
      AS utility_se_queries,
    bootstrap_ratio_se(list(plays * regret ORDER BY query_index), list(plays::DOUBLE ORDER BY query_index))
      AS regret_se_queries
  FROM {{ ref('stg_query_by_regime') }}
  GROUP BY pool, policy, regime
),
policies AS (
  SELECT DISTINCT pool, policy, base_policy, preset, kind, offline_labels
  FROM {{ ref('stg_replay_runs') }}
  WHERE is_current
)
SELECT
  t.pool,
  t.policy,
  p.base_policy,
  p.preset,
  p.kind,
  p.offline_labels,
  t.regime,
  t.utility,
  t.utility_se_trials,
  q.utility_se_queries,
  greatest(t.utility_se_trials, q.utility_se_queries) AS utility_se,
  t.utility_unclipped,
  t.regret,
  t.regret_se_trials,
  q.regret_se_queries,
  greatest(t.regret_se_trials, q.regret_se_queries) AS regret_se,
  t.score,
  t.cost_per_1000_calls,
  t.trials,
  t.rhos,
  t.complete,
  CASE
    WHEN t.complete AND p.kind <> 'upper bound' THEN
      rank() OVER (
        PARTITION BY t.pool, t.regime, t.complete AND p.kind <> 'upper bound' ORDER BY t.utility DESC
      )
  END AS rank
FROM trials AS t
JOIN policies AS p ON t.pool = p.pool AND t.policy = p.policy
LEFT JOIN queries AS q ON t.pool = q.pool AND t.policy = q.policy AND t.regime = q.regime
ORDER BY t.pool, t.regime, t.utility DESC, t.policy
