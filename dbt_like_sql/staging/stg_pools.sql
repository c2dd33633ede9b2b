-- One row a pool: its settings as of the newest replay.
SELECT
  pool,
  pool_title AS title,
  pool_description AS description,
  synthetic,
  paper_benchmark,
  reference_policy,
  encoder,
  condition,
  comparison_group,
  arms AS arm_names,
  len(arms) AS arms,
  queries,
  independent,
  rounds,
  trials,
  latency_weight,
  split_kind,
  split_seed,
  oracle_seed,
  order_seed,
  problem_hash,
  order_hash,
  pool_hash,
  versions,
  python,
  pool_settings,
  created_at AS newest_run
FROM {{ source('replay', 'run') }}
QUALIFY row_number() OVER (PARTITION BY pool ORDER BY created_at DESC, policy, rho) = 1
ORDER BY pool
