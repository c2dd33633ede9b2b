"""Generated data: `synthetic_outcomes(pool)` is the demo; `problems` makes replay problems for tests."""
