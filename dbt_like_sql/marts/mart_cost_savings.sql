-- What the same accuracy costs, and how much better a policy can be: against the baseline at its most accurate setting.
WITH curves AS (
  SELECT
    pool, policy, kind,
    list(cost_per_1000_calls ORDER BY rho) AS costs,
    list(score ORDER BY rho) AS scores,
    first(rho ORDER BY score DESC, rho) AS rho
  FROM {{ ref('mart_pareto_frontier') }}
  GROUP BY ALL
),
baselines AS (
  SELECT
    c.pool,
    c.policy AS baseline,
    list_max(c.scores) AS target_score,
    cost_at_score(c.costs, c.scores, list_max(c.scores)) AS baseline_cost
  FROM curves AS c
  JOIN {{ ref('stg_pools') }} AS p ON c.pool = p.pool
  WHERE c.policy = p.reference_policy OR c.policy = 'best_single'
),
best_trials AS (
  SELECT s.pool, s.policy, s.trial, s.score
  FROM {{ ref('stg_replay_summary') }} AS s
  JOIN curves AS b ON s.pool = b.pool AND s.policy = b.policy AND s.rho = b.rho
),
trial_error AS (
  SELECT a.pool, a.policy, b.policy AS baseline, standard_error_of(a.score / nullif(b.score, 0)) AS se, count(*) AS trials
  FROM best_trials AS a
  JOIN best_trials AS b ON a.pool = b.pool AND a.trial = b.trial
  JOIN baselines AS known ON b.pool = known.pool AND b.policy = known.baseline
  GROUP BY a.pool, a.policy, b.policy
),
best_queries AS (
  SELECT q.pool, q.policy, q.query_index, q.cluster, q.score::DOUBLE AS score
  FROM {{ source('replay', 'queries') }} AS q
  JOIN curves AS b ON q.pool = b.pool AND q.policy = b.policy AND q.rho = b.rho
),
query_error AS (
  SELECT
    a.pool, a.policy, b.policy AS baseline,
    query_error(a.score, b.score, a.cluster, a.query_index) AS error
  FROM best_queries AS a
  JOIN best_queries AS b ON a.pool = b.pool AND a.query_index = b.query_index
  JOIN baselines AS known ON b.pool = known.pool AND b.policy = known.baseline
  GROUP BY a.pool, a.policy, b.policy
)
SELECT
  c.pool,
  c.policy,
  c.kind,
  b.baseline,
  b.target_score,
  b.baseline_cost AS baseline_cost_per_1000_calls,
  cost_at_score(c.costs, c.scores, b.target_score) AS cost_per_1000_calls,
  1 - cost_at_score(c.costs, c.scores, b.target_score) / nullif(b.baseline_cost, 0) AS share_saved,
  b.baseline_cost - cost_at_score(c.costs, c.scores, b.target_score) AS saved_per_1000_calls,
  list_max(c.scores) / nullif(b.target_score, 0) - 1 AS performance_gain,
  with_trials(q.error, t.se, t.trials).se AS performance_gain_se
FROM curves AS c
JOIN baselines AS b ON c.pool = b.pool
LEFT JOIN trial_error AS t ON c.pool = t.pool AND c.policy = t.policy AND b.baseline = t.baseline
LEFT JOIN query_error AS q ON c.pool = q.pool AND c.policy = q.policy AND b.baseline = q.baseline
ORDER BY c.pool, b.baseline, c.policy
