-- Utility, regret, accuracy and cost at every rho: the raw material of every curve over rho.
SELECT
  pool,
  policy,
  kind,
  rho,
  regime,
  avg(utility) AS utility,
  standard_error_of(utility) AS utility_se_trials,
  avg(utility_unclipped) AS utility_unclipped,
  avg(regret) AS regret,
  avg(score) AS score,
  1000 * avg(cost) AS cost_per_1000_calls,
  avg(observed) AS observed,
  count(*) AS trials
FROM {{ ref('stg_replay_summary') }}
GROUP BY pool, policy, kind, rho, regime
ORDER BY pool, policy, rho
