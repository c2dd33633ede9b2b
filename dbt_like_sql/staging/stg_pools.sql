-- One row a pool: what its file says of it, and the settings of the newest of the replays that are as the file says.
-- Of a pool without an active file, or without a replay at a rho and of a policy of the file, the newest replay says all.
WITH replayed AS (
  SELECT
    r.*,
    f.pool IS NOT NULL AND list_contains(f.rhos, r.rho) AND list_contains(f.policies, r.policy) AS is_named,
    f.pool IS NOT NULL
      AND r.trials = f.trials
      AND r.order_seed = f.order_seed
      AND r.condition = f.condition
      AND r.latency_weight = f.latency_weight AS is_played_so
  FROM {{ source('replay', 'run') }} AS r
  -- A policy that is not installed here (its package was removed) stays out of all marts.
  -- The preset of a policy with options of its own is `default@alpha=2`.
  SEMI JOIN {{ source('catalog', 'policies') }} AS c ON r.base_policy = c.base_policy AND split_part(r.preset, '@', 1) = c.preset
  LEFT JOIN {{ source('pool_files', 'settings') }} AS f ON r.pool = f.pool
),
newest AS (
  SELECT *
  FROM replayed
  QUALIFY row_number() OVER (PARTITION BY pool ORDER BY is_named DESC, is_played_so DESC, created_at DESC, policy, rho) = 1
)
SELECT
  n.pool,
  CASE WHEN f.pool IS NULL THEN n.pool_title ELSE f.title END AS title,
  CASE WHEN f.pool IS NULL THEN n.pool_description ELSE f.description END AS description,
  CASE WHEN f.pool IS NULL THEN n.synthetic ELSE f.synthetic END AS synthetic,
  CASE WHEN f.pool IS NULL THEN n.paper_benchmark ELSE f.paper_benchmark END AS paper_benchmark,
  CASE WHEN f.pool IS NULL THEN n.reference_policy ELSE f.reference_policy END AS reference_policy,
  n.encoder,
  n.condition,
  n.comparison_group,
  n.arms AS arm_names,
  len(n.arms) AS arms,
  n.queries,
  n.independent,
  n.rounds,
  n.trials,
  n.latency_weight,
  n.split_kind,
  n.split_seed,
  n.oracle_seed,
  n.order_seed,
  n.problem_hash,
  n.order_hash,
  n.pool_hash,
  n.versions,
  n.python,
  n.pool_settings,
  CASE
    WHEN n.is_named THEN f.rhos
    ELSE CAST(json_extract(n.pool_settings, '$.replay.rhos') AS DOUBLE[])
  END AS rhos,
  CASE WHEN n.is_named THEN f.policies END AS policies,
  n.created_at AS newest_run
FROM newest AS n
LEFT JOIN {{ source('pool_files', 'settings') }} AS f ON n.pool = f.pool
ORDER BY n.pool
