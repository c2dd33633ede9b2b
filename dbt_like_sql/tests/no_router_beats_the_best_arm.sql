-- No policy earns more than the policy that plays the best arm of every query; of a table with gaps means are estimates.
SELECT u.pool, u.policy, u.regime, u.utility, b.utility AS best
FROM {{ ref('mart_utility_by_regime') }} AS u
JOIN {{ ref('mart_utility_by_regime') }} AS b
  ON u.pool = b.pool AND u.regime = b.regime AND b.base_policy = 'oracle_best'
WHERE u.utility > b.utility + 1e-6 AND u.observed = 1
