{{ config(materialized='view') }}
-- Every round of every comparable replay. A view: tens of millions of rows, kept once, in the replays' own files.
SELECT
  x.pool,
  x.rho,
  x.policy,
  x.trial,
  x.round,
  x.query_index,
  x.action,
  x.propensity,
  x.reward
FROM {{ source('replay', 'rounds') }} AS x
SEMI JOIN (SELECT pool, rho, policy FROM {{ ref('stg_replay_runs') }} WHERE is_current) AS r
  ON x.pool = r.pool AND x.rho = r.rho AND x.policy = r.policy
