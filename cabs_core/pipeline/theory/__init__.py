"""What the theorems predict, measured on generated bandits, and the page of it; the asset `theory` makes it.

What belongs here: `experiments` runs them and keeps the page as an artifact, `page` draws it,
`version` knows its code version without loading either. What does not: policies on outcome tables,
which `benchmarks/` of the repository compares.
"""
