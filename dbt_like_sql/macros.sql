-- Functions shared by the models. cabs_core.metrics.regimes.regime_of is the same rule in Python.
CREATE OR REPLACE TEMP MACRO regime_of(rho) AS
  CASE WHEN rho <= 300 THEN 'low' WHEN rho < 800 THEN 'medium' ELSE 'high' END;

-- 'upper bound' uses what no router can see: the rewards of arms that were not played.
CREATE OR REPLACE TEMP MACRO kind_of(base_policy) AS
  CASE
    WHEN base_policy IN ('oracle_best', 'lin_ucb_full', 'neural_ucb_full') THEN 'upper bound'
    WHEN base_policy IN ('random', 'best_single', 'knn', 'carrot', 'ridge', 'kernel') THEN 'static'
    ELSE 'online'
  END;

-- Whether a policy was given anything learned from the train split's labels before the first round.
CREATE OR REPLACE TEMP MACRO offline_labels_of(base_policy, preset) AS
  base_policy NOT IN ('random', 'oracle_best', 'epsilon_greedy', 'square_cb', 'lin_ucb', 'lin_ts', 'neural_ucb',
                      'lin_ucb_full', 'neural_ucb_full')
  OR preset = 'warm';

CREATE OR REPLACE TEMP MACRO standard_error_of(x) AS stddev_samp(x) / sqrt(count(x));
