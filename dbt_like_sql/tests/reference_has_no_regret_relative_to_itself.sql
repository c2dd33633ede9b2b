-- The reference policy's relative cumulative regret is zero at every checkpoint.
SELECT pool, policy, regime, round, relative_regret
FROM {{ ref('mart_regret_curves') }}
WHERE policy = reference_policy AND abs(relative_regret) > 1e-9
