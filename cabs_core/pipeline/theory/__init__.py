"""What the theorems predict, measured on generated bandits, and the page of it; the asset `theory` makes it.

What belongs here: `bandit` is generated and played, `experiments` measures on it and keeps the page as an
artifact, `page` draws it, `version` knows its code version without loading any. What does not:
policies on outcome tables, which `benchmarks/` of the repository compares.
"""
