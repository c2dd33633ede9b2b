"""Fixtures of the gauntlet: a stage for each module, with bundles of the small router; finished homes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from finished_homes import *  # noqa: F403
from small_router import *  # noqa: F403  (pytest finds fixtures by their names)

from .stage import ROOT, Server, Stage

# where `make gauntlet` puts clients; last, so that libraries that they share with the project are its own
sys.path.append(str(ROOT / "build" / "gauntlet"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory, make_bundle) -> Iterator[Stage]:
    """Bundles of a policy that serves any rho and of one that learns, and the stand-in upstream."""
    routers = {policy: make_bundle(policy, epsilon=0.1) for policy in ("carrot", "hier_mix")}
    with Stage(tmp_path_factory.mktemp("stage"), routers) as made:
        yield made


@pytest.fixture(scope="module")
def server(stage: Stage) -> Server:
    """A server with the options that it has by default."""
    return stage.fresh()
