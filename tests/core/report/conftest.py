"""Marts over fake replays and the pages made from them, built once."""

import pytest
from fake_replays import build_artifacts

from cabs_core.report import build_leaderboard, build_report


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """(artifacts folder, report of pool `one`, leaderboard)."""
    artifacts = tmp_path_factory.mktemp("artifacts")
    build_artifacts(artifacts)
    build_report("two", artifacts)
    return artifacts, build_report("one", artifacts), build_leaderboard(artifacts)
