-- One row a replay (pool, rho, policy): what was run, on what, when, and whether it is compared.
WITH replayed AS (
  SELECT
    *,
    -- Only runs on the same problem, with the same rounds and trials, can be compared pair by pair.
    problem_hash = arg_max(problem_hash, created_at) OVER same_pool
      AND rounds = arg_max(rounds, created_at) OVER same_pool
      AND trials = arg_max(trials, created_at) OVER same_pool AS same_problem,
    -- Regimes are those of the pool's own grid, as its newest replay knows it.
    CAST(json_extract(arg_max(pool_settings, created_at) OVER same_pool, '$.replay.rhos') AS DOUBLE[]) AS grid
  FROM {{ source('replay', 'run') }} AS r
  -- A policy that is not installed here (its package was removed) stays out of all marts.
  -- The preset of a policy with options of its own is `default@alpha=2`.
  SEMI JOIN {{ source('catalog', 'policies') }} AS c ON r.base_policy = c.base_policy AND split_part(r.preset, '@', 1) = c.preset
  WINDOW same_pool AS (PARTITION BY pool)
),
runs AS (
  -- A rho that the pool file does not name (played from the UI, say) is kept, and is no part of any mean.
  SELECT *, same_problem AND (grid IS NULL OR list_contains(grid, rho)) AS is_current
  FROM replayed
),
policies AS (
  SELECT pool, count(DISTINCT policy) AS policies
  FROM runs
  WHERE is_current
  GROUP BY pool
),
-- A mean over more or other rhos is another quantity: what is compared stands at rhos that every policy has.
shared AS (
  SELECT r.pool, r.rho
  FROM runs AS r
  JOIN policies AS p ON r.pool = p.pool
  WHERE r.is_current
  GROUP BY r.pool, r.rho, p.policies
  HAVING count(DISTINCT r.policy) = p.policies
)
SELECT
  r.pool,
  r.rho,
  regime_of(r.rho, r.grid) AS regime,
  r.policy,
  r.base_policy,
  r.preset,
  -- 'upper bound' uses what no router can see: the rewards of arms that were not played.
  known.kind,
  -- Whether it was given anything learned from the train split's labels before the first round.
  known.start != 'nothing' AS offline_labels,
  r.trials,
  r.rounds,
  r.queries,
  len(r.arms) AS arms,
  r.problem_hash,
  r.order_hash,
  r.pool_hash,
  r.seed,
  r.created_at,
  r.is_current,
  r.is_current AND s.rho IS NOT NULL AS is_compared
FROM runs AS r
LEFT JOIN shared AS s ON r.pool = s.pool AND r.rho = s.rho
JOIN {{ source('catalog', 'policies') }} AS known ON r.base_policy = known.base_policy AND split_part(r.preset, '@', 1) = known.preset
ORDER BY r.pool, r.policy, r.rho
