"""Scores of single answers: by a reference (`text`), running `code`, a model (`judge`), people (`labels`)."""
