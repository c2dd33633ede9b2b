-- Cumulative regret by round and regime, relative to the pool's reference policy (RQ4), and per round over the last tenth
-- of the checkpoints, with errors over trials.
WITH by_regime AS (
  SELECT
    pool, policy, regime, trial, round,
    avg(cumulative_regret) AS cumulative_regret,
    avg(cumulative_utility) AS cumulative_utility
  FROM {{ ref('stg_replay_curves') }}
  GROUP BY ALL
),
united AS (
  SELECT
    pool, policy, regime, trial, round,
    avg(cumulative_regret) AS cumulative_regret,
    avg(cumulative_utility) AS cumulative_utility
  FROM (SELECT * REPLACE (unnest([regime, 'overall']) AS regime) FROM by_regime)
  GROUP BY ALL
),
both_levels AS (
  SELECT
    *,
    (cumulative_regret - lag(cumulative_regret, 10) OVER earlier) / (round - lag(round, 10) OVER earlier) AS recent_regret
  FROM united
  WINDOW earlier AS (PARTITION BY pool, policy, regime, trial ORDER BY round)
)
SELECT
  a.pool,
  a.policy,
  a.regime,
  a.round,
  avg(a.cumulative_regret) AS cumulative_regret,
  standard_error_of(a.cumulative_regret) AS cumulative_regret_se,
  any_value(p.reference_policy) AS reference_policy,
  avg(a.cumulative_regret - b.cumulative_regret) AS relative_regret,
  standard_error_of(a.cumulative_regret - b.cumulative_regret) AS relative_regret_se,
  avg(a.recent_regret) AS recent_regret,
  standard_error_of(a.recent_regret) AS recent_regret_se,
  avg(a.cumulative_utility) / a.round AS average_utility,
  count(*) AS trials
FROM both_levels AS a
JOIN {{ ref('stg_pools') }} AS p ON a.pool = p.pool
LEFT JOIN both_levels AS b
  ON a.pool = b.pool AND a.regime = b.regime AND a.trial = b.trial AND a.round = b.round
  AND b.policy = p.reference_policy
GROUP BY a.pool, a.policy, a.regime, a.round
ORDER BY a.pool, a.policy, a.regime, a.round
