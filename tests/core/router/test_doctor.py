"""`doctor` counts what the log holds and says what is wrong."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cabs_core.errors import RouterError
from cabs_core.router import Router
from cabs_core.router.doctor import examine


@pytest.fixture
def used(make_bundle, test_prompts, tmp_path):
    folder, log = make_bundle("carrot", epsilon=0.3), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    made = [router.route(test_prompts[i % 20]) for i in range(60)]
    for i, d in enumerate(made[:40]):
        router.feedback(d.id, score=(i % 5) / 4, cost=1e-4)
    router.finish(made[0].id, status="timeout")
    router.close()
    return folder, log, made


def test_counts_and_curves(used):
    folder, log, made = used
    found = examine(folder, log)
    assert (found["decisions"], found["rewards"], found["unscored"], found["failed"]) == (60, 40, 20, 1)
    for arm in found["arms"]:
        mine = [(i % 5) / 4 for i, d in enumerate(made[:40]) if d.model == arm["model"]]
        assert arm["scored"] == len(mine)
        assert arm["mean_score"] == (pytest.approx(np.mean(mine)) if mine else None)
        assert arm["decisions"] == sum(d.model == arm["model"] for d in made)
    assert len(found["curve"]["score"]) == 10 and found["curve"]["score"][0] == pytest.approx(0.375)
    assert found["checkpoint"]["applied"] == 40 and found["problems"] == []


def test_a_stale_lease_with_rewards_waiting(used, monkeypatch):
    folder, log, made = used
    router = Router.load(folder, log=log)
    router.log.take_lease("dead", 5.0)
    router.feedback(made[50].id, score=1.0)  # in the log, in no checkpoint
    router.log.close()
    assert examine(folder, log)["problems"] == []
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert "lease of dead" in examine(folder, log)["problems"][0]


def test_never_scored_and_failing(make_bundle, test_prompts, tmp_path):
    folder, log = make_bundle("best_single", epsilon=0.0), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    for _ in range(200):
        router.finish(router.route(test_prompts[0]).id, status="error")
    router.close()
    words = " ".join(examine(folder, log)["problems"])
    assert "no decision was ever scored" in words and "never played" in words and "failed" in words


def test_rewards_of_another_bundle_do_not_count(used, make_bundle, test_prompts):
    _, log, _ = used
    folder = make_bundle("ridge", epsilon=0.3)
    found = examine(folder, log)
    assert (found["decisions"], found["rewards"], found["unscored"], found["other_bundles"]) == (0, 0, 0, 60)
    assert found["problems"] == []
    router = Router.load(folder, log=log)
    router.route(test_prompts[0])
    router.close()
    assert "no decision was ever scored" in " ".join(examine(folder, log)["problems"])


def test_no_log_and_no_log_file(make_bundle, tmp_path):
    with pytest.raises(RouterError, match="there is no log"):
        examine(make_bundle("carrot"), tmp_path / "none.sqlite")
    (tmp_path / "text").write_text("this is text" * 100)
    with pytest.raises(RouterError, match="cannot be opened: file is not a database"):
        examine(make_bundle("carrot"), tmp_path / "text")


def test_why_calls_failed_and_what_was_saved(make_bundle, test_prompts, tmp_path):
    """A failed attempt costs something and replaces no call of the fallback."""
    folder, log = make_bundle("carrot", epsilon=0.3), tmp_path / "events.sqlite"
    router = Router.load(folder, log=log)
    assert examine(folder, log)["saved"] is None
    made = [router.route(test_prompts[i]) for i in range(6)]
    for d in made[:4]:
        router.finish(d.id, status="answered", cost=1e-4)
    router.finish(made[4].id, status="timeout", cost=3e-4, reason="no answer within 60 s")
    router.finish(made[5].id, status="error", reason="HTTP 401: refuses the router's key, or the model")
    fixed = sum(d.fixed_cost for d in router.log.decisions()[:4])
    router.close()
    found = examine(folder, log)
    assert {(f["model"], f["reason"].split(":")[0], f["calls"]) for f in found["failures"]} == {
        (made[4].model, "no answer within 60 s", 1), (made[5].model, "HTTP 401", 1),
    }  # fmt: skip
    assert any(f"1 calls of {made[5].model} failed: HTTP 401" in p for p in found["problems"])
    assert found["saved"]["calls"] == 4 and found["saved"]["model"] == router.manifest.fallback
    assert found["saved"]["usd"] == pytest.approx(7e-4) and found["saved"]["fixed_usd"] == pytest.approx(
        fixed
    )
