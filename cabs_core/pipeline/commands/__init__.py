"""Commands that need no orchestrator: report, prune, data, evaluate, collect, judge, export, trace."""
