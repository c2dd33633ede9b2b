-- What policies would have earned on logged traffic: one row a policy, rho, outcome and estimator, or one with a refusal.
SELECT
  pool, policy, rho, outcome, estimator, value, low, high, difference, difference_low, difference_high,
  nullif(no_interval, '') AS no_interval, manski_width, nullif(refused, '') AS refused, n AS decisions, groups AS prompts, n_eff, max_weight, mean_weight, coverage,
  assumed, anytime
FROM {{ source('traffic', 'off_policy') }}
ORDER BY pool, policy, rho, outcome, estimator
