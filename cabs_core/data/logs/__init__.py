"""Readers of logs of calls: one reader, one set of rules for the logs of all tools, and a receipt.

    log = read_log("calls.jsonl", "litellm", columns={"score": "metadata.rating"}, score_range=(1, 5))
    print(log.receipt)          # number of calls that were kept, and why others were left out
    log.frame                   # prompt, model, score, cost, propensity, session, task, time, tokens

`calls` holds the entry of a log and the rules, which are the same for all formats. One module for each tool
says where the tool writes the values that the rules need. `call_table` (a table with a row for each call) and
`call_records` (a file of another tool) apply the rules, `read` turns values into numbers and writes the
receipt, and `names` finds one model under two names.
"""
