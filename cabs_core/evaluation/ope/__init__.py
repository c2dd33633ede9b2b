"""Off-policy evaluation: estimates of a policy's mean outcome from the log of another policy.

    data = read_events(EventLog("router.events.sqlite"), arms)  # or read_table(path, features, arms=arms)
    evaluation = evaluate(data, target, rho=300.0)              # target [n, K]: the policy's probabilities
    print(evaluation.row("dr").difference, evaluation.refused)

`data` has the arrays of a log, `estimators` the estimators, `models` the cross-fitted models of outcomes,
`intervals` the standard errors, and `evaluate` the whole evaluation, which refuses if the log cannot tell.
`training` makes train rows from a log.

Sources: SNIPS, Swaminathan and Joachims 2015; DR, Dudik et al. 2011; SWITCH, Wang et al. 2017.
"""
