-- CABS-C (coupled) against CABS-D (decoupled), linear and neural, by preset and regime (RQ1), with the paper's figures.
WITH metrics AS (
  SELECT
    pool, base_policy, preset, policy, regime,
    unnest(['utility', 'regret']) AS metric, unnest([utility, regret]) AS value, unnest([utility_se, regret_se]) AS se
  FROM {{ ref('mart_utility_by_regime') }}
  WHERE base_policy IN ('cabs_c_linear', 'cabs_d_linear', 'cabs_c_neural', 'cabs_d_neural')
),
paper AS (
  SELECT benchmark, policy, regime, metric, value
  FROM {{ source('paper', 'published') }}
  WHERE encoder = 'mdeberta-v3-base'
)
SELECT
  c.pool,
  replace(c.base_policy, 'cabs_c_', '') AS family,
  c.preset,
  c.regime,
  c.metric,
  c.value AS coupled,
  c.se AS coupled_se,
  d.value AS decoupled,
  d.se AS decoupled_se,
  d.value - c.value AS difference,
  -- the regret difference is the negative of the utility difference, query by query, so its error is the same
  x.se AS difference_se,
  x.significant,
  pc.value AS paper_coupled,
  pd.value AS paper_decoupled
FROM metrics AS c
JOIN metrics AS d
  ON c.pool = d.pool AND c.regime = d.regime AND c.metric = d.metric AND c.preset = d.preset
  AND d.base_policy = replace(c.base_policy, 'cabs_c_', 'cabs_d_')
JOIN {{ ref('stg_pools') }} AS p ON c.pool = p.pool
LEFT JOIN {{ ref('mart_pairwise_differences') }} AS x
  ON c.pool = x.pool AND c.regime = x.regime AND x.policy = d.policy AND x.baseline = c.policy
LEFT JOIN paper AS pc
  ON pc.benchmark = p.paper_benchmark AND pc.policy = c.base_policy AND pc.regime = c.regime AND pc.metric = c.metric
LEFT JOIN paper AS pd
  ON pd.benchmark = p.paper_benchmark AND pd.policy = d.base_policy AND pd.regime = d.regime AND pd.metric = d.metric
WHERE c.base_policy LIKE 'cabs_c_%'
ORDER BY c.pool, family, c.preset, c.metric DESC, c.regime
