-- Each trial's value of a regime (mean over its rhos) and overall (mean of the regimes), at the rhos that all policies of
-- the pool have. The unit of paired trials.
{% set means %}
  avg(utility) AS utility,
  avg(utility_unclipped) AS utility_unclipped,
  avg(regret) AS regret,
  avg(score) AS score,
  avg(cost) AS cost,
  avg(observed) AS observed,
  avg(switch_rate) AS switch_rate,
  avg(switches_per_session) AS switches_per_session,
  avg(effective_arms) AS effective_arms,
{% endset %}
WITH by_regime AS (
  SELECT
    pool, policy, regime, trial,
    {{ means }}
    list(rho ORDER BY rho) AS rhos
  FROM {{ ref('stg_replay_summary') }}
  WHERE is_compared
  GROUP BY ALL
),
both_levels AS (
  SELECT * REPLACE (unnest([regime, 'overall']) AS regime) FROM by_regime
)
SELECT
  pool, policy, regime, trial,
  {{ means }}
  list_sort(flatten(list(rhos))) AS rhos
FROM both_levels
GROUP BY ALL
ORDER BY pool, policy, regime, trial
