-- What is missing: every rho that some policy of a pool was replayed at and another was not. Such a rho is compared for none.
WITH current_runs AS (
  SELECT pool, policy, rho, regime FROM {{ ref('stg_replay_runs') }} WHERE is_current
)
SELECT p.pool, p.policy, r.rho, r.regime
FROM (SELECT DISTINCT pool, policy FROM current_runs) AS p
JOIN (SELECT DISTINCT pool, rho, regime FROM current_runs) AS r ON p.pool = r.pool
ANTI JOIN current_runs AS c ON p.pool = c.pool AND p.policy = c.policy AND r.rho = c.rho
ORDER BY p.pool, p.policy, r.rho
