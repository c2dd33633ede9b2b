-- Share of the way from the reference policy to LinUCB with full feedback: 0 = reference, 1 = full feedback.
WITH trials AS (
  SELECT
    a.pool, a.regime, a.policy, a.trial,
    any_value(p.reference_policy) AS reference_policy,
    any_value(a.utility - r.utility) AS gained,
    any_value(f.utility - r.utility) AS gap
  FROM {{ ref('stg_trial_by_regime') }} AS a
  JOIN {{ ref('stg_pools') }} AS p ON a.pool = p.pool
  JOIN {{ ref('stg_trial_by_regime') }} AS r
    ON a.pool = r.pool AND a.regime = r.regime AND a.trial = r.trial
    AND r.policy = p.reference_policy
  JOIN {{ ref('stg_trial_by_regime') }} AS f
    ON a.pool = f.pool AND a.regime = f.regime AND a.trial = f.trial
    AND f.policy = 'lin_ucb_full'
  GROUP BY a.pool, a.regime, a.policy, a.trial
),
means AS (
  SELECT
    pool, regime, policy,
    any_value(reference_policy) AS reference_policy,
    avg(gained) AS gained,
    avg(gap) AS gap,
    CASE WHEN avg(gap) > 0 THEN avg(gained) / avg(gap) END AS gap_closed
  FROM trials
  GROUP BY pool, regime, policy
),
-- Standard error of a ratio of means over trials by the delta method.
trial_error AS (
  SELECT
    t.pool, t.regime, t.policy,
    standard_error_of(t.gained - m.gap_closed * t.gap) / abs(any_value(m.gap)) AS se_trials,
    count(*) AS trials
  FROM trials AS t
  JOIN means AS m ON t.pool = m.pool AND t.regime = m.regime AND t.policy = m.policy
  WHERE m.gap_closed IS NOT NULL
  GROUP BY t.pool, t.regime, t.policy
),
query_error AS (
  SELECT
    m.pool, m.regime, m.policy,
    query_error(a.plays * (a.utility - r.utility), a.plays * (f.utility - r.utility), a.cluster, a.query_index) AS over_queries
  FROM means AS m
  JOIN {{ ref('stg_query_by_regime') }} AS a
    ON m.pool = a.pool AND m.regime = a.regime AND m.policy = a.policy
  JOIN {{ ref('stg_query_by_regime') }} AS r
    ON m.pool = r.pool AND m.regime = r.regime AND r.policy = m.reference_policy AND a.query_index = r.query_index
  JOIN {{ ref('stg_query_by_regime') }} AS f
    ON m.pool = f.pool AND m.regime = f.regime AND f.policy = 'lin_ucb_full' AND a.query_index = f.query_index
  WHERE m.gap_closed IS NOT NULL
  GROUP BY m.pool, m.regime, m.policy
)
SELECT
  m.pool,
  m.regime,
  m.policy,
  m.reference_policy,
  m.gained,
  m.gap,
  m.gap_closed,
  t.se_trials,
  q.over_queries.se AS se_queries,
  with_trials(q.over_queries, t.se_trials, t.trials).se AS se
FROM means AS m
LEFT JOIN trial_error AS t ON m.pool = t.pool AND m.regime = t.regime AND m.policy = t.policy
LEFT JOIN query_error AS q ON m.pool = q.pool AND m.regime = q.regime AND m.policy = q.policy
ORDER BY m.pool, m.regime, m.policy
