-- For every two methods of the paper's table: does ours order them the same way, and is our difference significant?
-- Ours is the unclipped utility, as in mart_paper_comparison; differences are paired as in mart_pairwise_differences.
WITH pairs AS (
  SELECT
    a.pool, a.paper_encoder, a.regime,
    a.policy AS better_in_paper,
    b.policy AS worse_in_paper,
    a.paper - b.paper AS paper_difference,
    a.ours - b.ours AS our_difference
  FROM {{ ref('mart_paper_comparison') }} AS a
  JOIN {{ ref('mart_paper_comparison') }} AS b
    ON a.pool = b.pool AND a.paper_encoder = b.paper_encoder AND a.regime = b.regime AND a.metric = b.metric
    AND a.paper > b.paper
  WHERE a.metric = 'utility'
),
wanted AS (
  SELECT DISTINCT pool, regime, better_in_paper, worse_in_paper FROM pairs
),
trials AS (
  SELECT
    w.pool, w.regime, w.better_in_paper, w.worse_in_paper,
    standard_error_of(a.utility_unclipped - b.utility_unclipped) AS se_trials,
    count(*) AS trials
  FROM wanted AS w
  JOIN {{ ref('stg_trial_by_regime') }} AS a
    ON w.pool = a.pool AND w.regime = a.regime AND w.better_in_paper = a.policy
  JOIN {{ ref('stg_trial_by_regime') }} AS b
    ON w.pool = b.pool AND w.regime = b.regime AND w.worse_in_paper = b.policy AND a.trial = b.trial
  GROUP BY w.pool, w.regime, w.better_in_paper, w.worse_in_paper
),
queries AS (
  SELECT
    w.pool, w.regime, w.better_in_paper, w.worse_in_paper,
    bootstrap_ratio_se(
      list(a.plays * (a.utility_unclipped - b.utility_unclipped) ORDER BY a.query_index),
      list(a.plays::DOUBLE ORDER BY a.query_index)
    ) AS se_queries,
    count(*) AS queries
  FROM wanted AS w
  JOIN {{ ref('stg_query_by_regime') }} AS a
    ON w.pool = a.pool AND w.regime = a.regime AND w.better_in_paper = a.policy
  JOIN {{ ref('stg_query_by_regime') }} AS b
    ON w.pool = b.pool AND w.regime = b.regime AND w.worse_in_paper = b.policy AND a.query_index = b.query_index
  GROUP BY w.pool, w.regime, w.better_in_paper, w.worse_in_paper
),
errors AS (
  SELECT
    t.pool, t.regime, t.better_in_paper, t.worse_in_paper,
    two_way_error(t.se_trials, q.se_queries, t.trials, q.queries) AS error
  FROM trials AS t
  LEFT JOIN queries AS q
    ON t.pool = q.pool AND t.regime = q.regime AND t.better_in_paper = q.better_in_paper
    AND t.worse_in_paper = q.worse_in_paper
)
SELECT
  p.pool,
  p.paper_encoder,
  p.regime,
  p.better_in_paper,
  p.worse_in_paper,
  p.paper_difference,
  p.our_difference,
  e.error.se AS our_se,
  p.our_difference > 0 AS holds,
  two_sided_p_value(p.our_difference, e.error.se, e.error.df) < 0.05 AS significant
FROM pairs AS p
LEFT JOIN errors AS e
  ON p.pool = e.pool AND p.regime = e.regime AND p.better_in_paper = e.better_in_paper
  AND p.worse_in_paper = e.worse_in_paper
ORDER BY p.pool, p.paper_encoder, p.regime, p.better_in_paper, p.worse_in_paper
