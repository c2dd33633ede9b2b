"""The measurements of a deployed router run and say what they measured."""

from __future__ import annotations

import pytest

from benchmarks.deployment import simulate


def test_without_trouble_the_deployment_is_the_replay(make_bundle, problem, test_prompts):
    # at rho 0, where the factors of costs, which a replay does not learn, count for nothing
    bundle = make_bundle("carrot", epsilon=0.0, rho=0.0)
    figures = simulate(bundle, problem, test_prompts, delay=1, never=0.0, outage=0.0)
    assert figures["difference"] == pytest.approx(0.0, abs=1e-12) and figures["regret"] > 0
    assert figures["regret of a replay with late rewards"] == pytest.approx(
        figures["regret"]
    )  # it never learns
