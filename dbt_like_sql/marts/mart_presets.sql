-- The three readings of every CABS policy side by side, and their paired differences: as printed, as it works, as tuned.
WITH readings AS (
  SELECT
    pool,
    base_policy,
    regime,
    max(policy) FILTER (preset = 'literal') AS literal_policy,
    max(policy) FILTER (preset = 'practical') AS practical_policy,
    max(policy) FILTER (preset = 'tuned') AS tuned_policy,
    max(utility) FILTER (preset = 'literal') AS literal,
    max(utility_se) FILTER (preset = 'literal') AS literal_se,
    max(utility) FILTER (preset = 'practical') AS practical,
    max(utility_se) FILTER (preset = 'practical') AS practical_se,
    max(utility) FILTER (preset = 'tuned') AS tuned,
    max(utility_se) FILTER (preset = 'tuned') AS tuned_se
  FROM {{ ref('mart_utility_by_regime') }}
  WHERE base_policy IN ('cabs_c_linear', 'cabs_d_linear', 'cabs_c_neural', 'cabs_d_neural')
  GROUP BY pool, base_policy, regime
)
SELECT
  r.pool,
  r.base_policy,
  r.regime,
  r.literal,
  r.literal_se,
  r.practical,
  r.practical_se,
  r.tuned,
  r.tuned_se,
  p.difference AS practical_minus_literal,
  p.se AS practical_minus_literal_se,
  p.significant AS practical_minus_literal_significant,
  t.difference AS tuned_minus_practical,
  t.se AS tuned_minus_practical_se,
  t.significant AS tuned_minus_practical_significant
FROM readings AS r
LEFT JOIN {{ ref('mart_pairwise_differences') }} AS p
  ON r.pool = p.pool AND r.regime = p.regime AND p.policy = r.practical_policy AND p.baseline = r.literal_policy
LEFT JOIN {{ ref('mart_pairwise_differences') }} AS t
  ON r.pool = t.pool AND r.regime = t.regime AND t.policy = r.tuned_policy AND t.baseline = r.practical_policy
ORDER BY r.pool, r.base_policy, r.regime
