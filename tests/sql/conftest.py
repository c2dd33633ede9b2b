"""Marts over fake replays."""

import shutil

import pytest
from fake_replays import artifacts_of_two_pools


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """(artifacts folder, {pool: problem}, {model: ModelRun})."""
    folder, problems, runs = artifacts_of_two_pools(tmp_path_factory)
    return shutil.copytree(folder, tmp_path_factory.mktemp("built") / "artifacts"), problems, runs
