-- Which arms a policy plays, by regime: share of rounds, and how well and dear the arm was when played.
WITH by_regime AS (
  SELECT
    pool, policy, regime, arm, trial,
    avg(share) AS share,
    sum(plays * score) / nullif(sum(plays), 0) AS score,
    sum(plays * cost) / nullif(sum(plays), 0) AS cost,
    sum(plays * observed) / nullif(sum(plays), 0) AS observed
  FROM {{ ref('stg_replay_arms') }}
  GROUP BY ALL
),
both_levels AS (
  SELECT
    pool, policy, regime, arm, trial,
    avg(share) AS share,
    sum(share * score) / nullif(sum(share) FILTER (score IS NOT NULL), 0) AS score,
    sum(share * cost) / nullif(sum(share) FILTER (cost IS NOT NULL), 0) AS cost,
    sum(share * observed) / nullif(sum(share) FILTER (observed IS NOT NULL), 0) AS observed
  FROM (SELECT * REPLACE (unnest([regime, 'overall']) AS regime) FROM by_regime)
  GROUP BY ALL
)
SELECT
  pool,
  policy,
  regime,
  arm,
  avg(share) AS share,
  standard_error_of(share) AS share_se_trials,
  avg(score) AS score_when_played,
  1000 * avg(cost) AS cost_per_1000_calls_when_played,
  avg(observed) AS observed
FROM both_levels
GROUP BY ALL
ORDER BY pool, policy, regime, share DESC, arm
