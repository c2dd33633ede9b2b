-- The policy that plays the best arm of every query has no regret; regret against it would mean a wrong benchmark.
SELECT pool, policy, regime, regret
FROM {{ ref('mart_utility_by_regime') }}
WHERE base_policy = 'oracle_best' AND abs(regret) > 1e-6
