"""A bundle decides as the replay did, is whole or refused, and says what it is."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import ProvenanceError, RouterError, StorageError
from cabs_core.base.hashing import hash_file
from cabs_core.data.outcomes import Outcomes
from cabs_core.evaluation.replay import replay
from cabs_core.router import promotion
from cabs_core.router.build import arms_of, build_bundle, choose_policy
from cabs_core.router.bundle import HEADER, Manifest, read_manifest
from cabs_core.router.checks import (
    FEWEST_TIMED,
    check_bundle_matches_replay,
    compare_with_champion,
    measure_latency,
    played_arms,
)
from cabs_core.router.promotion import promote, roll_back
from cabs_core.router.router import Router


def test_a_bundle_that_decides_otherwise_is_found_out(make_bundle, problem, tmp_path):
    """The check of the check: heads of another pool state give other decisions."""
    folder = tmp_path / "router"
    shutil.copytree(make_bundle("carrot"), folder)
    path = folder / "oracles" / "arrays.safetensors"
    arrays = load_file(path)
    arrays["context_costs.weights"] = -50.0 * arrays["context_costs.weights"]
    arrays["context_costs.mean"] = arrays["context_costs.mean"][::-1].copy()
    save_file(arrays, path)
    _resign(folder)
    match = check_bundle_matches_replay(folder, problem, rounds=60)
    assert not match.passed and match.first is not None and match.largest > 1e-9


def test_another_problem_is_refused(make_bundle, artifacts):
    validation = ReplayProblem.load(artifacts["replay_problem"] / "validation")
    with pytest.raises(ProvenanceError, match=r"compare.*problem"):
        check_bundle_matches_replay(make_bundle("carrot"), validation)


def _resign(folder, **changes):
    """Give an altered bundle hashes that fit, as an attacker or a fault in `build` would."""
    header = json.loads((folder / HEADER).read_text())
    files = {name: hash_file(folder / name) for name in header["files"]}
    draft = Manifest(**{**header, "files": files, **changes})
    (folder / HEADER).write_text(json.dumps(asdict(draft) | {"id": draft.digest()}))


@pytest.fixture
def copy(make_bundle, tmp_path):
    folder = tmp_path / "router"
    shutil.copytree(make_bundle("lin_ts"), folder)
    return folder


def test_every_flipped_byte_is_noticed(copy):
    for name in [*read_manifest(copy).files, HEADER]:
        path = copy / name
        before = path.read_bytes()
        for place in (0, len(before) // 2, len(before) - 1):
            data = bytearray(before)
            data[place] ^= 1
            path.write_bytes(bytes(data))
            with pytest.raises(ProvenanceError):
                Router.load(copy)
        path.write_bytes(before)
    Router.load(copy).close()


def test_missing_extra_and_outside_files(copy):
    (copy / "README.md").rename(copy / "README.txt")
    with pytest.raises(ProvenanceError, match=r"README\.md is missing"):
        read_manifest(copy)
    (copy / "README.txt").rename(copy / "README.md")
    (copy / "more.txt").write_text("x")
    with pytest.raises(ProvenanceError, match=r"more\.txt"):
        read_manifest(copy)
    (copy / "more.txt").unlink()
    before = json.loads((copy / HEADER).read_text())
    data = {**before, "files": {**before["files"], "../outside": "0" * 64}}
    (copy / HEADER).write_text(json.dumps(data))
    with pytest.raises(ProvenanceError, match="altered"):
        read_manifest(copy)
    (copy / HEADER).write_text(json.dumps(before))
    _resign(copy, files=data["files"])
    with pytest.raises(ProvenanceError, match="outside the bundle"):
        read_manifest(copy)


@pytest.mark.parametrize(("version", "words"), [(99, "update this software"), (0, "export the router again")])
def test_other_formats(copy, version, words):
    data = json.loads((copy / HEADER).read_text())
    (copy / HEADER).write_text(json.dumps(data | {"format": version}))
    with pytest.raises(ProvenanceError, match=words):
        Router.load(copy)


def test_no_bundle(tmp_path):
    with pytest.raises(ProvenanceError, match="cabs export"):
        Router.load(tmp_path)


def test_replay_only_policies_and_unpriced_arms_are_refused(tmp_path, pool, artifacts):
    for policy in ("oracle_best", "lin_ucb_full"):
        with pytest.raises(RouterError, match="replay only"):
            build_bundle(tmp_path / "x", pool, artifacts, policy=policy)
    with pytest.raises(RouterError, match="free names"):
        build_bundle(tmp_path / "x", pool, artifacts, policy="carrot", free=["nobody"])
    assert not (tmp_path / "x").exists()


def test_an_arm_of_no_cost_needs_a_word(artifacts):
    table = Outcomes.load(artifacts["outcomes"])
    costs = table.costs.copy()
    costs[:, 1] = 0.0
    table = replace(table, costs=costs)
    with pytest.raises(RouterError, match=r"missing price.*--free"):
        arms_of(table, np.arange(50), ())
    assert arms_of(table, np.arange(50), [table.arms[1]])[1]["free"]


def test_the_best_on_validation_is_chosen(artifacts):
    """Against the slow way: the largest mean of replays; the test problem plays no part."""
    validation = ReplayProblem.load(artifacts["replay_problem"] / "validation")
    names = ["random", "carrot", "kernel_ridge", "lin_ucb_full", "oracle_best"]
    choice = choose_policy(validation, names, 300.0)
    values = {
        n: replay(validation, n, 300.0, 3).rewards.mean()
        for n in names
        if n not in ("lin_ucb_full", "oracle_best")
    }
    assert [r["policy"] for r in choice.rows] == list(values)
    assert choice.policy == max(values, key=values.get)
    for row in choice.rows:
        assert row["utility"] == pytest.approx(values[row["policy"]])
    with pytest.raises(RouterError, match="can be deployed"):
        choose_policy(validation, ["oracle_best"], 300.0)


def test_without_prompts(make_bundle):
    folder = make_bundle("carrot", prompts=False)
    assert not (folder / "neighbours").exists()
    router = Router.load(folder)
    assert router.explain(router.route("Some question?"))["neighbours"] == []


def test_promote_and_roll_back(make_bundle, tmp_path):
    one, two = make_bundle("carrot"), make_bundle("lin_ts")
    place = tmp_path / "deployed"
    ids = [read_manifest(f).id for f in (one, two)]
    with pytest.raises(RouterError, match="nothing was promoted"):
        roll_back(place)
    assert promote(one, place) == ids[0]
    assert promote(one, place) == ids[0] and not place.with_name("deployed.previous").exists()
    assert promote(two, place) == ids[1] == read_manifest(place).id
    assert roll_back(place) == ids[0] == read_manifest(place).id
    assert roll_back(place) == ids[1] == read_manifest(place).id
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deployed", "deployed.previous"]


def test_a_damaged_live_router_is_replaced_and_the_one_before_it_stays_kept(make_bundle, tmp_path):
    one, two = make_bundle("carrot"), make_bundle("lin_ts")
    place = tmp_path / "deployed"
    first, second = promote(one, place), promote(two, place)
    for damaged in ("policy/state.npz", "router.json"):
        (place / damaged).write_bytes(b"damaged")
        assert promote(two, place) == second == read_manifest(place).id
        assert read_manifest(place.with_name("deployed.previous")).id == first


def test_roll_back_without_a_live_router_names_the_folder_to_copy(make_bundle, tmp_path):
    place = tmp_path / "deployed"
    for name in ("carrot", "lin_ts"):
        promote(make_bundle(name), place)
    shutil.rmtree(place)
    with pytest.raises(RouterError, match=r"deployed does not exist: copy .*deployed\.previous there"):
        roll_back(place)


def test_roll_back_on_a_disk_that_gets_full_keeps_the_displaced_router(make_bundle, tmp_path, monkeypatch):
    place = tmp_path / "deployed"
    for name in ("carrot", "lin_ts"):
        promote(make_bundle(name), place)
    old = place.with_name("deployed.previous")
    earlier = read_manifest(old).id
    displaced = read_manifest(place).id
    write = promotion.atomic_directory

    def write_all_but_the_earlier_folder(path, contents):
        if path == old:
            raise StorageError("no space left")
        return write(path, contents)

    monkeypatch.setattr(promotion, "atomic_directory", write_all_but_the_earlier_folder)
    with pytest.raises(RouterError, match="is kept in") as refused:
        roll_back(place)
    assert read_manifest(place).id == earlier
    kept = re.search(r"is kept in (\S+):", str(refused.value))
    assert kept is not None and read_manifest(kept[1]).id == displaced


def test_promotion_keeps_what_is_not_a_router(make_bundle, tmp_path):
    one, two, place = make_bundle("lin_ts"), make_bundle("carrot"), tmp_path / "deployed"
    previous = place.with_name("deployed.previous")
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"'notes.txt'.*would be lost"):
        promote(one, place)
    assert [p.name for p in place.iterdir()] == ["notes.txt"] and not previous.exists()
    (place / "notes.txt").unlink()
    promote(one, place)
    previous.mkdir()
    (previous / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"'notes.txt'"):
        promote(two, place)
    assert read_manifest(place).id == read_manifest(one).id and (previous / "notes.txt").is_file()
    (previous / "notes.txt").unlink()
    (place / "policy" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"policy/notes.txt"):
        promote(two, place)


@pytest.fixture
def compare(make_bundle, problem, test_prompts):
    """compare(champion, challenger, outcomes=, margin=, ...) -> the verdict on two policies' bundles."""

    def verdict(champion, challenger, outcomes=problem, **options):
        folders = (make_bundle(policy) for policy in (champion, challenger))
        return compare_with_champion(*folders, test_prompts, outcomes, **options)

    return verdict


def test_a_worse_challenger_is_not_promoted(compare, problem):
    worse = compare("kernel_ridge", "random")
    assert not worse.promote and worse.difference < 0 and "champion stays" in worse.reason
    same = compare("kernel_ridge", "kernel_ridge", margin=0.2)
    assert same.promote and same.difference == 0.0
    fewer = replace(problem.rows(np.arange(problem.n)), arms=[f"other-{arm}" for arm in problem.arms])
    with pytest.raises(RouterError, match="no outcomes"):
        compare("kernel_ridge", "kernel_ridge", fewer)


def with_gaps(problem, champion_plays: np.ndarray, unknown: tuple[str, ...] = ()):
    """The problem with 40 % of its cells missing at random, and predicted as wrong where the champion plays,
    else as right."""
    real = np.random.default_rng(0).random(problem.scores.shape) > 0.4
    guess = np.ones(problem.scores.shape)
    guess[np.arange(problem.n), champion_plays] = 0.0
    guess[:, [problem.arms.index(arm) for arm in unknown]] = 0.0
    return replace(
        problem,
        scores=np.where(real, problem.scores, guess),
        observed=real.astype(float),
        predicted_scores=guess,
        metadata={**problem.metadata, "unknown": list(unknown)},
    )


def test_predictions_do_not_promote(compare, make_bundle, problem, test_prompts):
    """Biased predictions turn the verdict round where they count as outcomes, and change little where they
    do not."""
    full = compare("kernel_ridge", "random", rho=0.0, margin=0.2)
    rows = np.arange(problem.n)
    played = played_arms(make_bundle("kernel_ridge"), test_prompts, problem, 0.0)
    gaps = with_gaps(problem, played)
    naive = compare("kernel_ridge", "random", replace(gaps, observed=None), rho=0.0, margin=0.2)
    assert full.difference < -0.05 and not full.promote
    assert naive.difference > 0.05 and naive.promote  # predictions taken for outcomes
    verdict = compare("kernel_ridge", "random", gaps, rho=0.0, margin=0.2)
    assert verdict.difference < 0 and not verdict.promote and "from real answers" in verdict.reason
    assert abs(verdict.difference - full.difference) < 3 * verdict.se
    assert verdict.se > full.se and (gaps.observed[rows, played] > 0).any()


def test_what_nobody_can_know_is_not_told(compare, make_bundle, problem, test_prompts):
    full = compare("kernel_ridge", "carrot", rho=0.0, margin=0.9)
    played = played_arms(make_bundle("kernel_ridge"), test_prompts, problem, 0.0)
    gaps = with_gaps(problem, played, tuple(problem.arms))
    verdict = compare("kernel_ridge", "carrot", gaps, rho=0.0, margin=0.02)
    assert full.promote and not verdict.promote
    spread = 1.96 * verdict.se
    assert verdict.low < verdict.difference - spread and verdict.high > verdict.difference + spread
    assert "cannot tell" in verdict.reason
    assert "ask these models on the prompts that lack them" in verdict.reason


def test_both_learn_from_real_answers_alone(make_bundle, problem, test_prompts):
    bundle = make_bundle("lin_ts")
    nothing = replace(problem, observed=np.zeros(problem.scores.shape))
    mirror = replace(nothing, scores=1.0 - problem.scores)
    known, unknown, mirrored = (
        played_arms(bundle, test_prompts, outcomes, 0.0) for outcomes in (problem, nothing, mirror)
    )
    assert (unknown == mirrored).all() and (known != unknown).any()


def test_what_a_hub_adds_is_no_damage(make_bundle, tmp_path):
    shutil.copytree(make_bundle("ridge", prompts=False), tmp_path / "public")
    public = tmp_path / "public"
    assert not (public / "neighbours").exists()
    (public / ".gitattributes").write_text("*.npz filter=lfs\n")
    (public / "LICENSE").write_text("MIT\n")
    (public / ".cache" / "huggingface").mkdir(parents=True)
    (public / ".cache" / "huggingface" / "x.metadata").write_text("1")
    promote(public, tmp_path / "router")
    (public / "policy" / "state.npz").write_bytes(b"other")
    with pytest.raises(ProvenanceError, match=r"state\.npz was altered"):
        read_manifest(public)


def test_latency_is_measured(make_bundle, test_prompts):
    latency = measure_latency(make_bundle("carrot"), test_prompts, decisions=5, warmup=1)
    assert 0 < latency.encoder_p50 <= latency.encoder_p99 and latency.total_p50 > latency.rest_p50 > 0
    with pytest.raises(RouterError):
        measure_latency(make_bundle("carrot"), [])


def test_slow_decisions_are_timed_until_the_time_is_over(make_bundle, test_prompts):
    clock = (
        itertools.count().__next__
    )  # a second passes between two looks at the clock, so a decision takes two
    latency = measure_latency(
        make_bundle("carrot"), test_prompts, decisions=80, warmup=1, most_seconds=120, clock=clock
    )
    assert (latency.decisions, latency.total_p50) == (60, 2000)


def test_the_fewest_decisions_are_timed_however_slow_they_are(make_bundle, test_prompts):
    latency = measure_latency(make_bundle("carrot"), test_prompts, decisions=80, warmup=1, most_seconds=0)
    assert latency.decisions == FEWEST_TIMED
