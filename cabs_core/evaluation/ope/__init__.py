"""Off-policy evaluation: what another policy would have earned, from the log of the one that ran.

    data = read_events(EventLog("router.events.sqlite"), arms)  # or read_table(path, columns, arms, features)
    evaluation = evaluate(data, target, rho=300.0)              # target [n, K]: the policy's probabilities
    print(evaluation.row("dr").difference, evaluation.refused)

`data` is what a log must hold, `estimators` the estimators, `models` the cross-fitted models of outcomes,
`evaluate` puts them together with intervals and refuses where the log cannot tell.

Sources: SNIPS, Swaminathan and Joachims 2015; DR, Dudik et al. 2011; SWITCH, Wang et al. 2017.
"""
