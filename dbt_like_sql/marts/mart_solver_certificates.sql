-- How many exploration programs were solved, and how many of the solutions carry a certificate of optimality.
SELECT
  pool,
  policy,
  sum(solved_rounds)::BIGINT AS solved_rounds,
  sum(uncertified)::BIGINT AS uncertified,
  1 - sum(uncertified) / nullif(sum(solved_rounds), 0) AS share_certified,
  max(max_gap) AS max_gap,
  sum(mean_gap * solved_rounds) / nullif(sum(solved_rounds) FILTER (mean_gap IS NOT NULL), 0) AS mean_gap
FROM {{ ref('stg_replay_summary') }}
GROUP BY pool, policy
HAVING sum(solved_rounds) > 0
ORDER BY pool, policy
