-- For every two methods of the paper's table: does ours order them the same way, and is our difference significant?
-- Ours is the unclipped utility, as in mart_paper_comparison; differences are paired as in mart_pairwise_differences.
WITH pairs AS (
  SELECT
    pool, paper_encoder, regime,
    a.policy AS better_in_paper,
    b.policy AS worse_in_paper,
    a.paper - b.paper AS paper_difference,
    a.ours - b.ours AS our_difference
  FROM {{ ref('mart_paper_comparison') }} AS a
  JOIN {{ ref('mart_paper_comparison') }} AS b USING (pool, paper_encoder, regime, metric)
  WHERE metric = 'utility' AND a.paper > b.paper
),
wanted AS (
  SELECT DISTINCT pool, regime, better_in_paper, worse_in_paper FROM pairs
),
trials AS (
  SELECT
    pool, regime, better_in_paper, worse_in_paper,
    standard_error_of(a.utility_unclipped - b.utility_unclipped) AS se_trials,
    count(*) AS trials
  FROM {{ ref('stg_trial_by_regime') }} AS a
  JOIN {{ ref('stg_trial_by_regime') }} AS b USING (pool, regime, trial)
  JOIN wanted AS w USING (pool, regime)
  WHERE a.policy = better_in_paper AND b.policy = worse_in_paper
  GROUP BY ALL
),
queries AS (
  SELECT
    pool, regime, better_in_paper, worse_in_paper,
    query_error(a.plays * (a.utility_unclipped - b.utility_unclipped), a.plays::DOUBLE, a.cluster, query_index) AS over_queries
  FROM {{ ref('stg_query_by_regime') }} AS a
  JOIN {{ ref('stg_query_by_regime') }} AS b USING (pool, regime, query_index)
  JOIN wanted AS w USING (pool, regime)
  WHERE a.policy = better_in_paper AND b.policy = worse_in_paper
  GROUP BY ALL
),
errors AS (
  SELECT *, with_trials(over_queries, se_trials, trials) AS error
  FROM trials
  LEFT JOIN queries USING (pool, regime, better_in_paper, worse_in_paper)
)
SELECT
  pool,
  paper_encoder,
  regime,
  better_in_paper,
  worse_in_paper,
  paper_difference,
  our_difference,
  error.se AS our_se,
  our_difference > 0 AS holds,
  two_sided_p_value(our_difference, error) < 0.05 AS significant
FROM pairs
LEFT JOIN errors USING (pool, regime, better_in_paper, worse_in_paper)
ORDER BY pool, paper_encoder, regime, better_in_paper, worse_in_paper
