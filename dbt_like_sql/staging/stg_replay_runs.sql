-- One row a replay (pool, rho, policy): what was run, on what, when, and whether it is compared.
WITH replayed AS (
  SELECT
    r.*,
    -- Regimes are those of the pool's own grid.
    p.rhos AS grid,
    -- A rho or policy that the pool file does not name (played from the UI, say, or taken out) is no part of any mean.
    (p.rhos IS NULL OR list_contains(p.rhos, r.rho))
      AND (p.policies IS NULL OR list_contains(p.policies, r.policy)) AS is_named,
    -- Only runs on the same problem, in the same orders, with the same rounds and trials, can be compared pair by pair.
    r.problem_hash = p.problem_hash
      AND r.rounds = p.rounds
      AND r.trials = p.trials
      AND r.order_seed IS NOT DISTINCT FROM p.order_seed
      AND r.condition IS NOT DISTINCT FROM p.condition
      AND r.latency_weight IS NOT DISTINCT FROM p.latency_weight AS same_problem
  FROM {{ source('replay', 'run') }} AS r
  -- A policy that is not installed here (its package was removed) stays out of all marts.
  -- The preset of a policy with options of its own is `default@alpha=2`.
  SEMI JOIN {{ source('catalog', 'policies') }} AS c ON r.base_policy = c.base_policy AND split_part(r.preset, '@', 1) = c.preset
  JOIN {{ ref('stg_pools') }} AS p ON r.pool = p.pool
),
runs AS (
  SELECT *, is_named AND same_problem AS is_current
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
  r.is_named,
  r.is_current,
  r.is_current AND s.rho IS NOT NULL AS is_compared
FROM runs AS r
LEFT JOIN shared AS s ON r.pool = s.pool AND r.rho = s.rho
JOIN {{ source('catalog', 'policies') }} AS known ON r.base_policy = known.base_policy AND split_part(r.preset, '@', 1) = known.preset
ORDER BY r.pool, r.policy, r.rho
