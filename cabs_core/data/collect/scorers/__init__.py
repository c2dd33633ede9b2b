"""Scores of single answers: by a reference (`text`), by running code (`code`), by a model (`judge`), by
people (`labels`)."""
