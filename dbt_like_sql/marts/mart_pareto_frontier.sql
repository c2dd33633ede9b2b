-- Accuracy against cost: one point per policy and rho (RQ3), and which points matter.
WITH points AS (
  SELECT
    pool, policy, kind, rho,
    avg(score) AS score,
    standard_error_of(score) AS score_se_trials,
    avg(cost) AS cost,
    avg(observed) AS observed
  FROM {{ ref('stg_replay_summary') }}
  WHERE is_compared
  GROUP BY pool, policy, kind, rho
),
vertices AS (
  SELECT pool, policy, unnest(hull(list(cost ORDER BY rho), list(score ORDER BY rho))) AS vertex
  FROM points
  GROUP BY pool, policy
)
SELECT
  a.pool,
  a.policy,
  a.kind,
  a.rho,
  a.score,
  a.score_se_trials,
  1000 * a.cost AS cost_per_1000_calls,
  a.observed,
  EXISTS (
    SELECT 1 FROM vertices AS v
    WHERE v.pool = a.pool AND v.policy = a.policy AND v.vertex.cost = a.cost AND v.vertex.score = a.score
  ) AS on_own_hull,
  a.kind <> 'upper bound' AND NOT EXISTS (
    SELECT 1 FROM points AS b
    WHERE b.pool = a.pool AND b.kind <> 'upper bound' AND b.cost <= a.cost AND b.score >= a.score
      AND (b.cost < a.cost OR b.score > a.score)
  ) AS on_pool_frontier
FROM points AS a
ORDER BY a.pool, a.policy, a.rho
