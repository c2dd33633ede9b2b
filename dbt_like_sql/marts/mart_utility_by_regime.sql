-- Utility and regret by cost regime and overall, over the rhos that all policies have, with their standard errors (RQ2).
WITH trials AS (
  SELECT
    pool, policy, regime,
    avg(utility) AS utility,
    standard_error_of(utility) AS utility_se_trials,
    avg(utility_unclipped) AS utility_unclipped,
    standard_error_of(utility_unclipped) AS unclipped_se_trials,
    avg(regret) AS regret,
    standard_error_of(regret) AS regret_se_trials,
    avg(score) AS score,
    1000 * avg(cost) AS cost_per_1000_calls,
    avg(observed) AS observed,
    count(*) AS trials,
    any_value(rhos) AS rhos
  FROM {{ ref('stg_trial_by_regime') }}
  GROUP BY pool, policy, regime
),
queries AS (
  SELECT
    pool, policy, regime,
    query_error(plays * utility, plays::DOUBLE, cluster, query_index) AS utility_error,
    query_error(plays * utility_unclipped, plays::DOUBLE, cluster, query_index) AS unclipped_error,
    query_error(plays * regret, plays::DOUBLE, cluster, query_index) AS regret_error
  FROM {{ ref('stg_query_by_regime') }}
  GROUP BY pool, policy, regime
),
policies AS (
  SELECT DISTINCT pool, policy, base_policy, preset, kind, offline_labels
  FROM {{ ref('stg_replay_runs') }}
  WHERE is_current
),
missing AS (
  SELECT DISTINCT pool, policy, unnest([regime, 'overall']) AS regime FROM {{ ref('mart_missing_rhos') }}
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
  q.utility_error.se AS utility_se_queries,
  with_trials(q.utility_error, t.utility_se_trials, t.trials).se AS utility_se,
  t.utility_unclipped,
  with_trials(q.unclipped_error, t.unclipped_se_trials, t.trials).se AS utility_unclipped_se,
  t.regret,
  t.regret_se_trials,
  q.regret_error.se AS regret_se_queries,
  with_trials(q.regret_error, t.regret_se_trials, t.trials).se AS regret_se,
  t.score,
  t.cost_per_1000_calls,
  t.observed,
  t.trials,
  len(t.rhos) AS rhos,
  t.rhos AS rho_values,
  m.regime IS NULL AS complete,
  CASE
    WHEN p.kind <> 'upper bound' THEN
      rank() OVER (PARTITION BY t.pool, t.regime, p.kind <> 'upper bound' ORDER BY t.utility DESC)
  END AS rank
FROM trials AS t
JOIN policies AS p ON t.pool = p.pool AND t.policy = p.policy
LEFT JOIN queries AS q ON t.pool = q.pool AND t.policy = q.policy AND t.regime = q.regime
LEFT JOIN missing AS m ON t.pool = m.pool AND t.policy = m.policy AND t.regime = m.regime
ORDER BY t.pool, t.regime, t.utility DESC, t.policy
