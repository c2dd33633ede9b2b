-- Time of one round (decision and update) in microseconds: percentiles over the trials of all rhos.
SELECT
  pool,
  policy,
  avg(microseconds_per_round) AS mean_us,
  quantile_cont(microseconds_per_round, 0.5) AS p50_us,
  quantile_cont(microseconds_per_round, 0.95) AS p95_us,
  quantile_cont(microseconds_per_round, 0.99) AS p99_us,
  count(microseconds_per_round) AS measurements
FROM {{ ref('stg_replay_summary') }}
WHERE microseconds_per_round IS NOT NULL
GROUP BY pool, policy
ORDER BY pool, policy
