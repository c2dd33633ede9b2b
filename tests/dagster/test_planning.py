"""The planner: fresh, stale, missing, waiting, blocked; consumers refuse what does not belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cabs_core.errors import PoolError, ProvenanceError
from cabs_core.pools import find_pool, load_pool_file
from cabs_dagster import partitions
from cabs_dagster.making import make
from cabs_dagster.planning import Chain
from cabs_dagster.stages import POOL_STAGES, Target
from cabs_dagster.storage import ArtifactStore


def build(text: str, **summary: Any):
    def write(folder: Path, inputs: dict[str, Path]) -> dict[str, Any]:
        (folder / "data.txt").write_text(text)
        return summary

    return write


def chain() -> Chain:
    return Chain(ArtifactStore(), find_pool("tiny"))


def make_all(until: str = "decision_latency") -> None:
    for name in POOL_STAGES:
        make(chain(), chain().stage(name), build(name, parts={}))
        if name == until:
            return


def states() -> dict[str, str]:
    current = chain()
    return {name: current.status(current.stage(name)).state for name in POOL_STAGES}


def test_nothing_there(tiny_pool: Path) -> None:
    found = states()
    assert found["outcomes"] == "missing"
    assert set(found.values()) == {"missing", "waiting"}


def test_made_in_order_everything_is_fresh_and_making_again_does_nothing(tiny_pool: Path) -> None:
    make_all()
    assert set(states().values()) == {"fresh"}
    current = chain()
    again = make(current, current.stage("splits"), build("never written"))
    assert again.reused
    assert (again.folder / "data.txt").read_text() == "splits"
    forced = make(chain(), current.stage("splits"), build("other"), force=True)
    assert not forced.reused and (forced.folder / "data.txt").read_text() == "other"


def test_a_setting_makes_stale_what_reads_it_and_nothing_before(tiny_pool: Path) -> None:
    make_all()
    tiny_pool.write_text(tiny_pool.read_text().replace("dim: 8", "dim: 9"))
    current = chain()
    assert [n for n in POOL_STAGES if current.status(current.stage(n)).state != "fresh"] == [
        "oracles",
        "replay_problem",
        "tuning",
        "decision_latency",
    ]
    assert "setting features.dim: 8 -> 9" in current.status(current.stage("oracles")).reasons


def test_an_unchanged_result_of_a_changed_stage_stops_the_ripple(tiny_pool: Path) -> None:
    make_all()
    tiny_pool.write_text(tiny_pool.read_text().replace("dim: 8", "dim: 9"))
    current = chain()
    make(current, current.stage("oracles"), build("oracles"))  # the same bytes as before
    assert states()["oracles"] == "fresh"
    assert "setting features.dim: 8 -> 9" in str(chain().status(chain().stage("replay_problem")).reasons)
    assert not any("oracles changed" in r for r in chain().status(chain().stage("replay_problem")).reasons)


def test_trials_concern_the_replays_alone(tiny_pool: Path) -> None:
    make_all()
    replay = next(iter(chain().replays([0.0], ["lin_ucb"])))
    make(chain(), replay, build("r"))
    assert chain().status(replay).state == "fresh"
    tiny_pool.write_text(tiny_pool.read_text().replace("trials: 2", "trials: 3"))
    current = chain()
    assert {current.status(current.stage(n)).state for n in POOL_STAGES} == {"fresh"}
    changed = current.status(next(iter(current.replays([0.0], ["lin_ucb"]))))
    assert changed.state == "stale"
    assert changed.reasons == ("setting replay.trials: 2 -> 3",)


def test_adding_a_policy_leaves_other_replays_fresh(tiny_pool: Path) -> None:
    make_all()
    make(chain(), next(iter(chain().replays([0.0], ["lin_ucb"]))), build("r"))
    tiny_pool.write_text(tiny_pool.read_text().replace("lin_ucb]", "lin_ucb, lin_ts]"))
    current = chain()
    assert current.status(current.stage("tuning")).state == "stale"
    make(current, current.stage("tuning"), build("tuned again", parts={}))
    current = chain()
    assert current.status(next(iter(current.replays([0.0], ["lin_ucb"])))).state == "fresh"
    assert current.status(next(iter(current.replays([0.0], ["lin_ts"])))).state == "missing"


def test_a_consumer_says_what_to_refresh_first(tiny_pool: Path) -> None:
    with pytest.raises(
        ProvenanceError, match=r"replay_problem of pool tiny needs outcomes of pool tiny.*not there"
    ):
        chain().require(chain().stage("replay_problem"))
    make_all()
    tiny_pool.write_text(tiny_pool.read_text().replace("[0.5, 0.2, 0.3]", "[0.6, 0.2, 0.2]"))
    with pytest.raises(
        ProvenanceError, match=r"needs splits of pool tiny, which is out of date \(setting split"
    ):
        chain().require(chain().stage("replay_problem"))


def test_a_consumer_notices_altered_bytes(tiny_pool: Path) -> None:
    make_all()
    path = chain().store.folder(("oracles", "tiny")) / "data.txt"
    path.write_text("tampered")
    with pytest.raises(ProvenanceError, match=r"data\.txt was altered"):
        chain().require(chain().stage("replay_problem"))


def test_inputs_are_verified_once_a_chain_and_again_when_made_again(
    tiny_pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_all()
    verified = []
    verify = ArtifactStore.verify_files
    monkeypatch.setattr(
        ArtifactStore, "verify_files", lambda s, parts, r: (verified.append(parts[0]), verify(s, parts, r))[1]
    )
    current = chain()
    for policy in ("lin_ucb", "lin_ts"):
        current.require(next(iter(current.replays([0.0], [policy]))))
    assert sorted(verified) == ["replay_problem", "tuning"]
    make(current, current.stage("tuning"), build("again"), force=True)
    verified.clear()
    current.require(next(iter(current.replays([0.0], ["lin_ucb"]))))
    assert "tuning" in verified


def test_a_failed_blocking_check_blocks_what_follows(tiny_pool: Path) -> None:
    make(chain(), chain().stage("outcomes"), build("o", _blocked=["scores_in_range: 2, expected 0 to 1"]))
    current = chain()
    assert current.status(current.stage("outcomes")).state == "fresh"
    for name in ("splits", "oracles", "tuning"):
        assert current.status(current.stage(name)).state == "blocked"
    with pytest.raises(ProvenanceError, match="scores_in_range"):
        current.require(current.stage("splits"))


def test_the_table_of_a_file_pool_is_an_input(cabs_home: Path) -> None:
    table = cabs_home / "pools" / "t.csv"
    table.parent.mkdir(parents=True)
    table.write_text("prompt,model,score,cost\n")
    path = cabs_home / "pools" / "own.yaml"
    path.write_text("name: own\nsource: {kind: file, path: t.csv}\n")
    current = Chain(ArtifactStore(), load_pool_file(path))
    make(current, current.stage("outcomes"), build("o"))
    fresh = Chain(ArtifactStore(), load_pool_file(path))
    assert fresh.status(fresh.stage("outcomes")).state == "fresh"
    table.write_text("prompt,model,score,cost\nmore,m,1,1\n")
    later = Chain(ArtifactStore(), load_pool_file(path))
    assert later.status(later.stage("outcomes")).reasons == ("table changed",)


def test_rhos_of_a_pool_are_registered_and_foreign_ones_refused(tiny_pool: Path) -> None:
    import dagster as dg

    pool = find_pool("tiny").pool
    odd = pool.model_copy(update={"replay": replace_rhos(pool, (0.0, 7777.0))})
    with dg.DagsterInstance.ephemeral() as instance:
        partitions.register(instance, [odd])
        assert set(instance.get_dynamic_partitions("pools")) == {"tiny"}
        assert {"0000", "1000", "7777"} <= set(instance.get_dynamic_partitions("rhos"))
        assert partitions.missing_partitions(instance, [odd]) == {"pools": [], "rhos": []}
    with pytest.raises(PoolError, match="does not replay rho 7777"):
        partitions.require_rho(pool, 7777.0)
    assert partitions.split_key(partitions.grid_key("tiny", 50)) == ("tiny", 50.0)
    assert partitions.split_key("tiny|0050") == ("tiny", 50.0)


def replace_rhos(pool, rhos):
    return pool.replay.model_copy(update={"rhos": rhos})


def test_a_target_knows_where_it_lies(tiny_pool: Path) -> None:
    pool = find_pool("tiny").pool
    target = Target("replay", pool, 50.0, "cabs_d_linear@literal")
    assert target.parts == ("replay", "tiny", "0050", "cabs_d_linear__literal")
    assert target.partition == "tiny|0050"
    assert target.key.path == ["replay", "cabs_d_linear__literal"]
    assert replace(target, rho=9999.0).partition == "tiny|9999"
