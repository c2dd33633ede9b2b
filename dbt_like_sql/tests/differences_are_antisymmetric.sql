-- policy - baseline and baseline - policy are the same number with opposite signs.
SELECT a.pool, a.regime, a.policy, a.baseline, a.difference, b.difference AS other_way
FROM {{ ref('mart_pairwise_differences') }} AS a
JOIN {{ ref('mart_pairwise_differences') }} AS b
  ON a.pool = b.pool AND a.regime = b.regime AND a.policy = b.baseline AND a.baseline = b.policy
WHERE abs(a.difference + b.difference) > 1e-12
