-- One row a replay (pool, rho, policy): what was run, on what, when.
SELECT
  pool,
  rho,
  regime_of(rho) AS regime,
  policy,
  base_policy,
  preset,
  -- 'upper bound' uses what no router can see: the rewards of arms that were not played.
  known.kind,
  -- Whether it was given anything learned from the train split's labels before the first round.
  known.start != 'nothing' AS offline_labels,
  trials,
  rounds,
  queries,
  len(arms) AS arms,
  problem_hash,
  order_hash,
  pool_hash,
  seed,
  created_at,
  -- Only runs on the same problem, with the same rounds and trials, can be compared pair by pair.
  problem_hash = arg_max(problem_hash, created_at) OVER same_pool
    AND rounds = arg_max(rounds, created_at) OVER same_pool
    AND trials = arg_max(trials, created_at) OVER same_pool AS is_current
FROM {{ source('replay', 'run') }}
LEFT JOIN {{ source('catalog', 'policies') }} AS known USING (base_policy, preset)
WINDOW same_pool AS (PARTITION BY pool)
ORDER BY pool, policy, rho
