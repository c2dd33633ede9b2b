{{ config(materialized='view') }}
-- Cumulative regret and utility at the checkpoints of every trial of the replays that are compared.
SELECT
  c.pool,
  c.rho,
  r.regime,
  c.policy,
  c.trial,
  c.round,
  c.cumulative_regret,
  c.cumulative_utility,
  c.expert_weights
FROM {{ source('replay', 'curves') }} AS c
JOIN {{ ref('stg_replay_runs') }} AS r ON c.pool = r.pool AND c.rho = r.rho AND c.policy = r.policy
WHERE r.is_compared
