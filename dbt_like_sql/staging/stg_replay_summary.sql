-- One row per replay and trial: means over the rounds. Runs that cannot be compared any more are left out.
SELECT
  t.pool,
  t.rho,
  r.regime,
  t.policy,
  r.base_policy,
  r.preset,
  r.kind,
  t.trial,
  t.rounds,
  t.utility,
  t.utility_unclipped,
  t.regret,
  t.best_utility,
  t.score,
  t.cost,
  t.observed,
  t.switch_rate,
  t.switches_per_session,
  t.effective_arms,
  t.mean_propensity,
  t.seconds,
  t.microseconds_per_round,
  t.solved_rounds,
  t.uncertified,
  t.max_gap,
  t.mean_gap,
  r.is_compared
FROM {{ source('replay', 'trials') }} AS t
JOIN {{ ref('stg_replay_runs') }} AS r ON t.pool = r.pool AND t.rho = r.rho AND t.policy = r.policy
WHERE r.is_current
ORDER BY t.pool, t.policy, t.rho, t.trial
