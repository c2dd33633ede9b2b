"""Data: prompts, answers, scores, costs and logs.

Pool files and pools, users' tables, logs of any tool and the router's own (`events`), requests and replies of
endpoints, collected answers, embeddings, outcome tables and the checks on them. Who should answer is decided
in `algorithms`. Public: `find_pool`, `load_outcomes`, `read_log`, `EventLog`.
"""
