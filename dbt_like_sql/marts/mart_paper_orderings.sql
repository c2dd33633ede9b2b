-- For every two methods of the paper's table: does ours order them the same way, and is our difference significant?
SELECT
  a.pool,
  a.paper_encoder,
  a.regime,
  a.policy AS better_in_paper,
  b.policy AS worse_in_paper,
  a.paper - b.paper AS paper_difference,
  a.ours - b.ours AS our_difference,
  d.se AS our_se,
  a.ours > b.ours AS holds,
  d.significant
FROM {{ ref('mart_paper_comparison') }} AS a
JOIN {{ ref('mart_paper_comparison') }} AS b
  ON a.pool = b.pool AND a.paper_encoder = b.paper_encoder AND a.regime = b.regime AND a.metric = b.metric
  AND a.paper > b.paper
LEFT JOIN {{ ref('mart_pairwise_differences') }} AS d
  ON a.pool = d.pool AND a.regime = d.regime AND a.policy = d.policy AND b.policy = d.baseline
WHERE a.metric = 'utility'
ORDER BY a.pool, a.paper_encoder, a.regime, better_in_paper, worse_in_paper
