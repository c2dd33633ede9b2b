{{ config(materialized='view') }}
-- Every round of every comparable replay. A view: tens of millions of rows, kept once, in the replays' own files.
SELECT
  x.pool,
  x.rho,
  x.policy,
  x.trial,
  x.round,
  x.query_index,
  q.query_id,
  x.action,
  n.arms[x.action + 1] AS model,
  x.propensity,
  x.reward
FROM {{ source('replay', 'rounds') }} AS x
SEMI JOIN (SELECT pool, rho, policy FROM {{ ref('stg_replay_runs') }} WHERE is_current) AS r
  ON x.pool = r.pool AND x.rho = r.rho AND x.policy = r.policy
JOIN {{ source('replay', 'run') }} AS n ON x.pool = n.pool AND x.rho = n.rho AND x.policy = n.policy
JOIN {{ source('replay', 'queries') }} AS q
  ON x.pool = q.pool AND x.rho = q.rho AND x.policy = q.policy AND x.query_index = q.query_index
