"""Scores of single answers: by a reference or running code (`text`, `box`), a `judge`, people (`labels`)."""
