-- Plays of every arm in every trial of the replays that are compared.
SELECT
  a.pool,
  a.rho,
  r.regime,
  a.policy,
  a.trial,
  a.arm,
  a.plays,
  a.share,
  a.score,
  a.cost,
  a.observed
FROM {{ source('replay', 'arms') }} AS a
JOIN {{ ref('stg_replay_runs') }} AS r ON a.pool = r.pool AND a.rho = r.rho AND a.policy = r.policy
WHERE r.is_compared
ORDER BY a.pool, a.policy, a.rho, a.trial, a.arm
