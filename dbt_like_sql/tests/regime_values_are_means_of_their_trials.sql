-- The utility of a regime is the mean over trials of the mean over its rhos, recomputed from the summary.
SELECT u.pool, u.policy, u.regime, u.utility, r.utility AS recomputed
FROM {{ ref('mart_utility_by_regime') }} AS u
JOIN (
  SELECT pool, policy, regime, avg(utility) AS utility
  FROM (
    SELECT pool, policy, regime, rho, avg(utility) AS utility
    FROM {{ ref('stg_replay_summary') }}
    WHERE is_compared
    GROUP BY pool, policy, regime, rho
  )
  GROUP BY pool, policy, regime
) AS r ON u.pool = r.pool AND u.policy = r.policy AND u.regime = r.regime
WHERE abs(u.utility - r.utility) > 1e-9
