-- One row per pool and policy: everything a reader compares first. Ranked by overall utility among real routers.
WITH wide AS (
  SELECT
    pool, policy,
    max(utility) FILTER (regime = 'low') AS utility_low,
    max(utility) FILTER (regime = 'medium') AS utility_medium,
    max(utility) FILTER (regime = 'high') AS utility_high
  FROM {{ ref('mart_utility_by_regime') }}
  GROUP BY pool, policy
),
best AS (
  SELECT pool, policy AS best_policy
  FROM {{ ref('mart_utility_by_regime') }}
  WHERE regime = 'overall' AND rank = 1
  QUALIFY row_number() OVER (PARTITION BY pool ORDER BY policy) = 1
)
SELECT
  u.pool,
  u.rank,
  u.policy,
  u.base_policy,
  u.preset,
  u.kind,
  u.offline_labels,
  u.utility,
  u.utility_se,
  w.utility_low,
  w.utility_medium,
  w.utility_high,
  u.utility_unclipped,
  u.regret,
  u.score,
  u.cost_per_1000_calls,
  u.observed,
  a.aiq,
  g.gap_closed,
  r.difference AS versus_reference,
  r.se AS versus_reference_se,
  r.significant AS versus_reference_significant,
  b.best_policy,
  d.difference AS versus_best,
  d.se AS versus_best_se,
  d.significant AS versus_best_significant,
  s.share_saved AS cost_saved_versus_best_single,
  l.decide_p50_us,
  l.decide_p99_us,
  u.rhos,
  u.trials,
  u.complete
FROM {{ ref('mart_utility_by_regime') }} AS u
JOIN wide AS w ON u.pool = w.pool AND u.policy = w.policy
JOIN {{ ref('stg_pools') }} AS p ON u.pool = p.pool
LEFT JOIN best AS b ON u.pool = b.pool
LEFT JOIN {{ ref('mart_aiq') }} AS a ON u.pool = a.pool AND u.policy = a.policy
LEFT JOIN {{ ref('mart_gap_closed') }} AS g
  ON u.pool = g.pool AND u.policy = g.policy AND g.regime = 'overall'
LEFT JOIN {{ ref('mart_pairwise_differences') }} AS r
  ON u.pool = r.pool AND r.regime = 'overall' AND r.policy = u.policy AND r.baseline = p.reference_policy
LEFT JOIN {{ ref('mart_pairwise_differences') }} AS d
  ON u.pool = d.pool AND d.regime = 'overall' AND d.policy = u.policy AND d.baseline = b.best_policy
LEFT JOIN {{ ref('mart_cost_savings') }} AS s
  ON u.pool = s.pool AND s.policy = u.policy AND s.baseline = 'best_single'
LEFT JOIN {{ ref('mart_decision_latency') }} AS l ON u.pool = l.pool AND u.policy = l.policy
WHERE u.regime = 'overall'
ORDER BY u.pool, u.rank NULLS LAST, u.utility DESC, u.policy
