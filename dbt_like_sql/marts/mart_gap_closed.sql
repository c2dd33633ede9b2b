-- Share of the way from the reference policy to LinUCB with full feedback: 0 = reference, 1 = full feedback.
WITH trials AS (
  SELECT
    pool, regime, a.policy, trial, p.reference_policy,
    a.utility - r.utility AS gained,
    f.utility - r.utility AS gap
  FROM {{ ref('stg_trial_by_regime') }} AS a
  JOIN {{ ref('stg_pools') }} AS p USING (pool)
  JOIN {{ ref('stg_trial_by_regime') }} AS r USING (pool, regime, trial)
  JOIN {{ ref('stg_trial_by_regime') }} AS f USING (pool, regime, trial)
  WHERE r.policy = p.reference_policy AND f.policy = 'lin_ucb_full'
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
  JOIN {{ ref('stg_query_by_regime') }} AS a USING (pool, regime, policy)
  JOIN {{ ref('stg_query_by_regime') }} AS r USING (pool, regime, query_index)
  JOIN {{ ref('stg_query_by_regime') }} AS f USING (pool, regime, query_index)
  WHERE r.policy = m.reference_policy AND f.policy = 'lin_ucb_full' AND m.gap_closed IS NOT NULL
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
LEFT JOIN trial_error AS t USING (pool, regime, policy)
LEFT JOIN query_error AS q USING (pool, regime, policy)
ORDER BY m.pool, m.regime, m.policy
