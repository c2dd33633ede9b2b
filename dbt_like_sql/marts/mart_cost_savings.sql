-- What the same accuracy costs: each policy against what the baseline spends at its most accurate setting.
WITH curves AS (
  SELECT pool, policy, kind, list(cost ORDER BY rho) AS costs, list(score ORDER BY rho) AS scores
  FROM (
    SELECT pool, policy, kind, rho, avg(score) AS score, avg(cost) AS cost
    FROM {{ ref('stg_replay_summary') }}
    WHERE is_compared
    GROUP BY pool, policy, kind, rho
  )
  GROUP BY pool, policy, kind
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
)
SELECT
  c.pool,
  c.policy,
  c.kind,
  b.baseline,
  b.target_score,
  1000 * b.baseline_cost AS baseline_cost_per_1000_calls,
  1000 * cost_at_score(c.costs, c.scores, b.target_score) AS cost_per_1000_calls,
  1 - cost_at_score(c.costs, c.scores, b.target_score) / nullif(b.baseline_cost, 0) AS share_saved,
  1000 * (b.baseline_cost - cost_at_score(c.costs, c.scores, b.target_score)) AS saved_per_1000_calls
FROM curves AS c
JOIN baselines AS b ON c.pool = b.pool
ORDER BY c.pool, b.baseline, c.policy
