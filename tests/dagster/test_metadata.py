"""Metadata of a summary, and the values that a command prints of it."""

import json

import dagster as dg

from cabs_dagster.metadata import figures, plain_values


def test_the_values_behind_metadata_are_those_of_the_summary() -> None:
    comparison = {"difference": 0.0125, "low": -0.01, "decisions": 400}
    summary = {
        "passed": True,
        "reason": "not worse",
        "comparison": comparison,
        "rows of": [{"a": 1}, {"a": 2}],
    }
    event = dg.AssetMaterialization("asset", metadata=figures(summary))
    assert json.loads(json.dumps(plain_values(event.metadata))) == summary
