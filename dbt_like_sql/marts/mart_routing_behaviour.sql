-- How a policy behaves by regime: how often it changes the arm, how many arms it really uses, its favourite.
WITH behaviour AS (
  SELECT
    pool, policy, regime,
    avg(switch_rate) AS switch_rate,
    standard_error_of(switch_rate) AS switch_rate_se_trials,
    avg(switches_per_session) AS switches_per_session,
    avg(effective_arms) AS effective_arms
  FROM {{ ref('stg_trial_by_regime') }}
  GROUP BY pool, policy, regime
),
favourite AS (
  SELECT pool, policy, regime, arg_max(arm, share) AS top_arm, max(share) AS top_share
  FROM {{ ref('mart_arm_shares') }}
  GROUP BY pool, policy, regime
)
SELECT
  b.pool,
  b.policy,
  b.regime,
  b.switch_rate,
  b.switch_rate_se_trials,
  b.switches_per_session,
  b.effective_arms,
  f.top_arm,
  f.top_share
FROM behaviour AS b
JOIN favourite AS f ON b.pool = f.pool AND b.policy = f.policy AND b.regime = f.regime
ORDER BY b.pool, b.policy, b.regime
