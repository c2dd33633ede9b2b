-- Time of single online calls (percentiles over decisions), and beside it the throughput of the compiled replay.
WITH calls AS (
  SELECT
    pool, policy,
    count(*) AS decisions,
    any_value(rho) AS rho,
    quantile_cont(decide_us, 0.5) AS decide_p50_us,
    quantile_cont(decide_us, 0.95) AS decide_p95_us,
    quantile_cont(decide_us, 0.99) AS decide_p99_us,
    avg(decide_cpu_us) AS decide_cpu_us,
    quantile_cont(decide_cpu_us, 0.99) AS decide_cpu_p99_us,
    quantile_cont(update_us, 0.5) AS update_p50_us,
    quantile_cont(update_us, 0.95) AS update_p95_us,
    quantile_cont(update_us, 0.99) AS update_p99_us,
    avg(update_cpu_us) AS update_cpu_us,
    quantile_cont(update_cpu_us, 0.99) AS update_cpu_p99_us
  FROM {{ source('online', 'decisions') }}
  GROUP BY pool, policy
),
replays AS (
  SELECT pool, policy, sum(rounds) / nullif(sum(seconds), 0) AS replay_rounds_per_second
  FROM {{ ref('stg_replay_summary') }}
  GROUP BY pool, policy
)
SELECT
  r.pool,
  r.policy,
  c.rho,
  c.decisions,
  c.decide_p50_us,
  c.decide_p95_us,
  c.decide_p99_us,
  c.decide_cpu_us,
  c.decide_cpu_p99_us,
  c.update_p50_us,
  c.update_p95_us,
  c.update_p99_us,
  c.update_cpu_us,
  c.update_cpu_p99_us,
  r.replay_rounds_per_second
FROM replays AS r
LEFT JOIN calls AS c ON r.pool = c.pool AND r.policy = c.policy
ORDER BY r.pool, r.policy
