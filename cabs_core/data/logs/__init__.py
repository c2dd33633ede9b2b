"""Logs of calls, whoever wrote them: one reader, one table of rules, and a receipt.

    log = read_log("calls.jsonl", "litellm", columns={"score": "metadata.rating"}, score_range=(1, 5))
    print(log.receipt)          # what was kept, what was left out and why
    log.frame                   # prompt, model, score, cost, propensity, session, task, time, tokens

`calls` holds what an entry of a log is and the rules for all formats; a module for each writer says where it
puts what the rules ask for. `gather` asks the rules, `read` makes numbers and the receipt, and `names` finds
one model under two names.
"""
