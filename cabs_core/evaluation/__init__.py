"""Evaluation of policies and models: by replay on a table, or from the log of another policy.

`replay` plays policies, `ope` estimates from logs, `metrics` has figures of replays, and `answer` judges the
options that a team has. Standard errors are in `base.statistics`, pages in `report`. Public names are
`replay_many`, `ReplayResult`, `tune`, `frontier`, `paired_difference` and `evaluate`.
"""
