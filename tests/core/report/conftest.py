"""Marts over fake replays and the pages made from them, built once for all processes of a test session."""

import pickle
import shutil
from dataclasses import replace

import pytest
from fake_replays import artifacts_of_two_pools
from small_pools import write_small_pools
from tests_support import made_once

from cabs_core.report import build_leaderboard, build_report


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """(artifacts folder, report of pool `one`, leaderboard); to be read only."""

    def make(folder):
        shutil.copytree(artifacts_of_two_pools(tmp_path_factory)[0], folder, dirs_exist_ok=True)
        results = build_report("one", folder), build_leaderboard(folder)
        (folder / "results.pickle").write_bytes(pickle.dumps(results))

    folder = made_once(tmp_path_factory, "pages", make)
    report, leaderboard = pickle.loads((folder / "results.pickle").read_bytes())
    return (
        folder,
        replace(report, path=folder / "reports/one/index.html"),
        replace(leaderboard, path=folder / "reports/index.html"),
    )


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Artifacts folder with the marts of `small_pools`; a page is built by the test that reads it."""
    folder = made_once(tmp_path_factory, "small_pools", write_small_pools)
    return shutil.copytree(folder, tmp_path_factory.mktemp("small") / "artifacts")
