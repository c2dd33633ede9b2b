-- What stands behind a pool's figures: hashes, seeds, versions, and replays that were set aside as outdated.
SELECT
  p.pool,
  p.title,
  p.synthetic,
  p.encoder,
  p.condition,
  p.queries,
  p.arms,
  p.rounds,
  p.trials,
  count(*) FILTER (r.is_current) AS runs,
  count(*) FILTER (r.is_named AND NOT r.is_current) AS outdated_runs,
  count(*) FILTER (NOT r.is_named) AS unnamed_runs,
  count(DISTINCT r.rho) FILTER (r.is_current) AS rhos,
  count(DISTINCT r.policy) FILTER (r.is_current) AS policies,
  count(DISTINCT r.order_hash) FILTER (r.is_current) AS query_orders,
  any_value(p.problem_hash) AS problem_hash,
  any_value(p.order_hash) AS order_hash,
  any_value(p.pool_hash) AS pool_hash,
  any_value(p.split_seed) AS split_seed,
  any_value(p.oracle_seed) AS oracle_seed,
  any_value(p.order_seed) AS order_seed,
  any_value(p.python) AS python,
  any_value(p.versions) AS versions,
  any_value(p.pool_settings) AS pool_settings,
  min(r.created_at) FILTER (r.is_current) AS oldest_run,
  max(r.created_at) FILTER (r.is_current) AS newest_run
FROM {{ ref('stg_pools') }} AS p
JOIN {{ ref('stg_replay_runs') }} AS r ON p.pool = r.pool
GROUP BY p.pool, p.title, p.synthetic, p.encoder, p.condition, p.queries, p.arms, p.rounds, p.trials
ORDER BY p.pool
