"""Marts over fake replays, built once."""

import pytest
from fake_replays import build_artifacts


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """(artifacts folder, {pool: problem}, {model: ModelRun})."""
    artifacts = tmp_path_factory.mktemp("artifacts")
    problems, runs = build_artifacts(artifacts)
    return artifacts, problems, runs
