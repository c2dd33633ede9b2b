"""The planner: fresh, stale, missing, waiting, blocked; consumers refuse what does not belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests_support import chain_of, finished_replay, finished_stages, stand_in

from cabs_core.base.errors import ProvenanceError
from cabs_core.data.pool_files import pool_from
from cabs_core.data.pools.find import load_pool_file
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Options, Target, make_artifact
from cabs_core.pipeline.artifacts.planner import Finding, OlderData
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME
from cabs_core.pipeline.artifacts.stages import POOL_STAGES, REPLAY, pick


def states() -> dict[str, str]:
    current = chain_of()
    return {name: current.status(current.stage(name)).state for name in current.stages}


def not_fresh() -> list[str]:
    """The stages that would be made, in order."""
    return [name for name, state in states().items() if state != "fresh"]


def cell(rho: float = 0.0, policy: str = "lin_ucb") -> Target:
    return Target("replay", chain_of().pool, rho, policy)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def make_stage(name: str, text: str, **summary: Any) -> None:
    """Make a stage of the pool by a stand-in that writes this text."""
    current = chain_of()
    make_artifact(current, current.stage(name), build=stand_in(text, **summary))


def set_time(parts: tuple[str, ...], created: str) -> None:
    """Have a record say that its artifact was made at this time."""
    store = ArtifactStore()
    record = store.record(parts)
    assert record is not None
    (store.folder(parts) / RECORD_NAME).write_bytes(replace(record, created=created).to_bytes())


def test_nothing_there(tiny_pool: Path) -> None:
    state = states()
    assert state["outcomes"] == "missing"
    assert set(state.values()) == {"missing", "waiting"}
    assert chain_of().status(chain_of().stage("outcomes")).reasons == ("not made yet",)
    with pytest.raises(ProvenanceError, match="has not been run yet"):
        chain_of().made(chain_of().stage("outcomes"))


def test_a_state_in_words_has_three_reasons_and_the_number_of_the_others() -> None:
    assert str(Finding("missing", ("not made yet",))) == "not there"
    assert str(Finding("fresh")) == "fresh"
    assert str(Finding("stale", ("a", "b", "c"))) == "out of date (a; b; c)"
    assert str(Finding("stale", tuple("abcde"))) == "out of date (a; b; c; and 2 more)"


def test_replays_are_of_every_rho_and_policy_unless_some_are_chosen(tiny_pool: Path) -> None:
    def cells(*chosen: Any) -> list[tuple[float | None, str | None]]:
        return [(target.rho, target.policy) for target in chain_of().replays(*chosen)]

    names = ["random", "best_single", "lin_ucb"]
    assert cells() == [(rho, name) for rho in (0.0, 500.0) for name in names]
    assert cells([500.0]) == [(500.0, name) for name in names]
    assert cells([], ["lin_ucb"]) == [(0.0, "lin_ucb"), (500.0, "lin_ucb")]
    assert cells([7.0], ["random"]) == [(7.0, "random")]


def test_an_overview_has_all_stages_and_then_all_replays(tiny_pool: Path) -> None:
    current = chain_of()
    names = [status.target.name for status in current.overview([500.0])]
    assert names == [*current.stages, "replay/random", "replay/best_single", "replay/lin_ucb"]


def test_a_chain_cut_to_some_policies_keeps_those_that_are_tuned(tiny_pool: Path) -> None:
    assert chain_of().tuned == ()
    assert chain_of().over(["random"]).pool.policies == ("random",)
    finished_stages()
    edit(tiny_pool, "lin_ucb]", "lin_ucb, lin_ts, ridge]")
    current = chain_of()
    assert current.tuned == ("random", "best_single", "lin_ucb")
    assert current.over(["lin_ts"]).pool.policies == ("random", "best_single", "lin_ucb", "lin_ts")
    assert current.over([]) is current
    assert current.over(["lin_ts", "ridge"]) is current


def test_a_chain_remembers_states_until_it_is_told_to_forget_them(tiny_pool: Path) -> None:
    finished_stages()
    current = chain_of()
    outcomes = current.stage("outcomes")
    assert (current.status(cell()).state, current.status(outcomes).state) == ("missing", "fresh")
    finished_replay(0.0, "lin_ucb")
    make_stage("outcomes", "outcomes")
    (current.store.folder(outcomes.parts) / "data.txt").write_text("tampered")
    assert current.status(cell()).state == "missing"
    current.forget(cell())  # a replay, of which nothing in the chain is made
    assert (current.status(cell()).state, current.status(outcomes).state) == ("fresh", "fresh")
    current.forget(outcomes)
    assert (current.status(cell()).state, current.status(outcomes).state) == ("waiting", "stale")


def test_made_in_order_everything_is_fresh_and_making_again_does_nothing(tiny_pool: Path) -> None:
    finished_stages()
    assert set(states().values()) == {"fresh"}
    current = chain_of()
    again = make_artifact(current, current.stage("splits"), build=stand_in("never written"))
    assert again.reused
    assert (again.folder / "data.txt").read_text() == "splits"
    forced = make_artifact(chain_of(), current.stage("splits"), Options(force=True), build=stand_in("other"))
    assert not forced.reused and (forced.folder / "data.txt").read_text() == "other"


def test_every_setting_of_a_stage_is_a_field_of_some_kind_of_pool() -> None:
    scores = [{"kind": "contains", "column": "answer"}]
    collect = {"upstreams": "u.yaml", "max_usd": 1, "scores": scores}
    kinds: list[dict[str, Any]] = [
        {"source": {"kind": "file", "path": "t.csv"}},
        {"source": {"kind": "logs", "path": "l.csv"}},
        {"source": {"kind": "collect", "path": "p.csv"}, "models": ["a", "b"], "collect": collect},
    ]
    pools = [pool_from({"name": "p"} | settings) for settings in kinds]
    for stage in (*POOL_STAGES.values(), REPLAY):
        for setting in stage.settings:
            assert any(pick(pool, (setting,)) for pool in pools), (stage.name, setting)


def test_a_setting_makes_stale_what_reads_it_and_nothing_before(tiny_pool: Path) -> None:
    finished_stages()
    with tiny_pool.open("a", encoding="utf-8") as pool:
        pool.write("router: {policy: best_single, epsilon: 0.1}\n")
    assert not_fresh() == ["router"]
    edit(tiny_pool, "dim: 8", "dim: 9")
    assert not_fresh() == ["oracles", "replay_problem", "tuning", "router"]
    assert "setting features.dim: 8 -> 9" in chain_of().status(chain_of().stage("oracles")).reasons


def test_an_unchanged_result_of_a_changed_stage_stops_the_ripple(tiny_pool: Path) -> None:
    finished_stages()
    edit(tiny_pool, "dim: 8", "dim: 9")
    current = chain_of()
    make_artifact(current, current.stage("oracles"), build=stand_in("oracles"))  # the same bytes as before
    assert states()["oracles"] == "fresh"
    reasons = chain_of().status(chain_of().stage("replay_problem")).reasons
    assert reasons == ("setting features.dim: 8 -> 9",)


def test_trials_concern_the_replays_alone(tiny_pool: Path) -> None:
    finished_replay(0.0, "lin_ucb")
    assert chain_of().status(cell()).state == "fresh"
    edit(tiny_pool, "trials: 2", "trials: 3")
    assert not_fresh() == []
    changed = chain_of().status(cell())
    assert changed.state == "stale" and changed.reasons == ("setting replay.trials: 2 -> 3",)


def test_adding_a_policy_leaves_other_replays_fresh(tiny_pool: Path) -> None:
    finished_replay(0.0, "lin_ucb")
    edit(tiny_pool, "lin_ucb]", "lin_ucb, lin_ts]")
    current = chain_of()
    assert current.status(current.stage("tuning")).state == "stale"
    make_artifact(current, current.stage("tuning"), build=stand_in("tuned again"))
    current = chain_of()
    assert current.status(cell()).state == "fresh"
    assert current.status(cell(policy="lin_ts")).state == "missing"


def test_a_replay_reads_its_own_policys_part_of_the_tuning_and_the_router_reads_all(tiny_pool: Path) -> None:
    finished_stages()
    make_stage("outcomes", "outcomes")
    edit(tiny_pool, "tuning_budget: 0", "tuning_budget: 1")
    make_stage("tuning", "first", parts={"random": "a", "lin_ucb": "b"})
    make_stage("router", "router")
    for policy in ("random", "lin_ucb"):
        make_artifact(chain_of(), cell(policy=policy), build=stand_in())
    edit(tiny_pool, "tuning_budget: 1", "tuning_budget: 2")
    make_stage("tuning", "second", parts={"random": "changed", "lin_ucb": "b"})
    assert not_fresh() == ["router"]
    assert chain_of().status(cell(policy="lin_ucb")).state == "fresh"
    assert chain_of().status(cell(policy="random")).reasons == ("tuning changed",)


def test_figures_that_were_never_made_or_are_up_to_date_are_not_of_older_data(tiny_pool: Path) -> None:
    assert chain_of().older_figures() is None
    finished_replay(0.0, "lin_ucb")
    current = chain_of()
    assert current.older_figures() is None
    current.require_current([cell()])


def test_figures_are_of_older_data_once_a_setting_changed_and_as_old_as_the_oldest(tiny_pool: Path) -> None:
    finished_replay(0.0, "lin_ucb")
    current = chain_of()
    for number, target in enumerate([current.stage("tuning"), cell(), current.stage("replay_problem")]):
        set_time(target.parts, f"2026-01-0{number + 1}T00:00:00+00:00")
    edit(tiny_pool, "dim: 8", "dim: 9")
    older = chain_of().older_figures()
    assert older is not None
    assert (older.made, older.since) == ("2026-01-01T00:00:00+00:00", "")
    # the first artifact that has to be made is named, once
    assert [reason for reason in older.reasons if "features.dim: 8 -> 9" in reason] == list(older.reasons)
    assert len(older.reasons) == 1 and "oracles of pool tiny" in older.reasons[0]
    with pytest.raises(ProvenanceError, match=r"made 2026-01-03.*features\.dim"):
        chain_of().require_current([chain_of().stage("replay_problem")])


def test_figures_are_of_older_data_since_the_check_that_failed(tiny_pool: Path) -> None:
    edit(tiny_pool, "tfidf-svd", "all-MiniLM-L6-v2")  # vectors of this encoder do not depend on the split
    finished_stages()
    edit(tiny_pool, "[0.5, 0.2, 0.3]", "[0.6, 0.2, 0.2]")
    make_stage("splits", "s", blocked=["few_prompts: 2, expected 10"])
    set_time(("splits", "tiny"), "2026-03-04T00:00:00+00:00")
    current = chain_of()
    assert current.status(current.stage("prompt_embeddings")).state == "fresh"
    older = current.older_figures()
    assert older is not None
    assert older.since == "2026-03-04T00:00:00+00:00"
    assert older.reasons == ("splits failed a check (few_prompts: 2, expected 10)",)


def test_figures_whose_record_cannot_be_read_are_of_an_unknown_time(tiny_pool: Path) -> None:
    finished_stages(until="replay_problem")
    folder = chain_of().store.folder(("replay_problem", "tiny"))
    (folder / RECORD_NAME).write_text("null")
    older = chain_of().older_figures()
    assert older is not None
    assert older.made == "at an unknown time" and "replay_problem" in older.reasons[0]


def test_a_sentence_on_older_data_says_when_a_check_failed() -> None:
    changed = OlderData(("outcomes changed",), "in May")
    failed = OlderData(("outcomes failed a check",), "in May", "June")
    assert "since June" in str(failed)
    assert "since then" in str(changed) and "outcomes changed" in str(changed)


def test_a_consumer_says_what_to_refresh_first(tiny_pool: Path) -> None:
    with pytest.raises(
        ProvenanceError, match=r"replay_problem of pool tiny.*outcomes of pool tiny.*not there"
    ):
        chain_of().require(chain_of().stage("replay_problem"))
    finished_stages()
    edit(tiny_pool, "[0.5, 0.2, 0.3]", "[0.6, 0.2, 0.2]")
    with pytest.raises(ProvenanceError, match=r"splits of pool tiny.*out of date \(setting split"):
        chain_of().require(chain_of().stage("replay_problem"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "data.txt").write_text("tampered"),
        lambda folder: (folder / "data.txt").unlink(),
        lambda folder: (folder / "more.txt").write_text("added"),
        lambda folder: (folder / "provenance.json").write_text("null"),
        lambda folder: (folder / "provenance.json").write_text("[]"),
        lambda folder: edit(folder / "provenance.json", '"seconds"', '"Seconds"'),
        lambda folder: edit(folder / "provenance.json", '"name": "oracles"', '"name": "splits"'),
    ],
)
def test_a_damaged_artifact_is_stale_refused_by_consumers_and_mended_by_making_it(
    tiny_pool: Path, damage
) -> None:
    finished_stages()
    damage(chain_of().store.folder(("oracles", "tiny")))
    current = chain_of()
    assert current.status(current.stage("oracles")).state == "stale"
    with pytest.raises(ProvenanceError, match=r"oracles of pool tiny.*out of date"):
        current.require(current.stage("replay_problem"))
    assert not make_artifact(chain_of(), current.stage("oracles"), build=stand_in("oracles")).reused
    assert set(states().values()) == {"fresh"}


def test_an_artifact_in_anothers_place_is_noticed(tiny_pool: Path) -> None:
    finished_replay(0.0, "lin_ucb")
    store = ArtifactStore()
    place = cell(500.0)
    store.move(cell().parts, place.parts)
    assert chain_of().status(place).state == "stale"


def test_a_failed_blocking_check_blocks_what_follows(tiny_pool: Path) -> None:
    failed = stand_in("o", blocked=["scores_in_range: 2, expected 0 to 1"])
    make_artifact(chain_of(), chain_of().stage("outcomes"), build=failed)
    current = chain_of()
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

    def current() -> Chain:
        return Chain(ArtifactStore(), load_pool_file(path))

    make_artifact(current(), current().stage("outcomes"), build=stand_in())
    before = current().pool_file.external_files()
    assert current().status(current().stage("outcomes")).state == "fresh"
    table.write_text("prompt,model,score,cost\nmore,m,1,1\n")
    assert current().status(current().stage("outcomes")).reasons == ("table changed",)
    assert current().pool_file.external_files() != before
