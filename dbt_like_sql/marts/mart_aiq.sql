-- AIQ (RouterBench): mean height of the non-decreasing hull over the pool's common cost interval; and the mean distance of a
-- router's settings to the pool's frontier (LLMRouterBench), with cost and score scaled to [0, 1] over all routers' settings.
WITH points AS (
  SELECT pool, policy, kind, rho, score, cost_per_1000_calls / 1000 AS cost, on_pool_frontier
  FROM {{ ref('mart_pareto_frontier') }}
),
domain AS (
  SELECT pool, min(cost) AS cost_min, max(cost) AS cost_max, min(score) AS score_min, max(score) AS score_max
  FROM points
  WHERE kind <> 'upper bound'
  GROUP BY pool
),
scaled AS (
  SELECT
    p.pool, p.policy, p.rho, p.on_pool_frontier,
    (p.cost - d.cost_min) / greatest(d.cost_max - d.cost_min, 1e-300) AS cost,
    (p.score - d.score_min) / greatest(d.score_max - d.score_min, 1e-300) AS score
  FROM points AS p
  JOIN domain AS d ON p.pool = d.pool
  WHERE p.kind <> 'upper bound'
),
distances AS (
  SELECT a.pool, a.policy, a.rho, min(sqrt((a.cost - b.cost) ** 2 + (a.score - b.score) ** 2)) AS distance
  FROM scaled AS a
  JOIN scaled AS b ON a.pool = b.pool AND b.on_pool_frontier
  GROUP BY ALL
),
pareto AS (
  SELECT pool, policy, avg(distance) AS pareto_distance
  FROM distances
  GROUP BY pool, policy
),
of_means AS (
  SELECT
    p.pool, p.policy, p.kind,
    any_value(d.cost_min) AS cost_min,
    any_value(d.cost_max) AS cost_max,
    aiq(list(p.cost ORDER BY p.rho), list(p.score ORDER BY p.rho), any_value(d.cost_min), any_value(d.cost_max)) AS aiq,
    count(*) AS points
  FROM points AS p
  JOIN domain AS d ON p.pool = d.pool
  GROUP BY p.pool, p.policy, p.kind
),
of_trials AS (
  SELECT
    s.pool, s.policy, s.trial,
    aiq(list(s.cost ORDER BY s.rho), list(s.score ORDER BY s.rho), any_value(d.cost_min), any_value(d.cost_max)) AS aiq
  FROM {{ ref('stg_replay_summary') }} AS s
  JOIN domain AS d ON s.pool = d.pool
  WHERE s.is_compared
  GROUP BY s.pool, s.policy, s.trial
),
trial_error AS (
  SELECT pool, policy, standard_error_of(aiq) AS aiq_se_trials, count(*) AS trials
  FROM of_trials
  GROUP BY pool, policy
),
query_error AS (
  SELECT
    q.pool, q.policy,
    aiq_bootstrap_se(
      list(q.cost::DOUBLE ORDER BY q.rho, q.query_index),
      list(q.score::DOUBLE ORDER BY q.rho, q.query_index),
      list(q.plays::DOUBLE ORDER BY q.rho, q.query_index),
      list(q.cluster::DOUBLE ORDER BY q.rho, q.query_index),
      count(DISTINCT q.rho)::DOUBLE,
      any_value(d.cost_min),
      any_value(d.cost_max)
    ) AS aiq_se_queries,
    count(DISTINCT q.cluster) AS queries
  FROM {{ source('replay', 'queries') }} AS q
  JOIN {{ ref('stg_replay_runs') }} AS r ON q.pool = r.pool AND q.rho = r.rho AND q.policy = r.policy
  JOIN domain AS d ON q.pool = d.pool
  WHERE r.is_compared
  GROUP BY q.pool, q.policy
)
SELECT
  m.pool,
  m.policy,
  m.kind,
  m.aiq,
  t.aiq_se_trials,
  e.aiq_se_queries,
  two_way_error(t.aiq_se_trials, e.aiq_se_queries, t.trials, e.queries).se AS aiq_se,
  o.pareto_distance,
  1000 * m.cost_min AS cost_min_per_1000_calls,
  1000 * m.cost_max AS cost_max_per_1000_calls,
  m.points
FROM of_means AS m
LEFT JOIN trial_error AS t ON m.pool = t.pool AND m.policy = t.policy
LEFT JOIN query_error AS e ON m.pool = e.pool AND m.policy = e.policy
LEFT JOIN pareto AS o ON m.pool = o.pool AND m.policy = o.policy
ORDER BY m.pool, m.aiq DESC, m.policy
