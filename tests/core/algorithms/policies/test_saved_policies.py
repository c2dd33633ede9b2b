"""A saved policy is read only as what its class expects: names, shapes, kinds and ranges of all that is in
it."""

from __future__ import annotations

import json
import shutil
import zipfile

import numpy as np
import pytest
from small_policies import CLASSES, DIM, ONE_OF_EACH, RHO, feedback, fresh, learned, stream

from cabs_core.algorithms.policies.play import Lane, play_lanes
from cabs_core.algorithms.policies.registry import load_policy, policy_class
from cabs_core.algorithms.policies.state import Ledger, checked_state
from cabs_core.base.catalog.policies import all_policies
from cabs_core.base.errors import PolicyError, ProvenanceError


def used(name: str, rounds: int = 20):
    """A policy that has played, with rounds under way where it has such."""
    policy, s = fresh(name), stream()
    lane = Lane.empty(np.arange(60), experts=policy.algorithm.experts)
    play_lanes([policy], s, [lane], 0, rounds)
    return policy


def rewrite(folder, change=None, header=None):
    """Saved files with other arrays or another header."""
    with np.load(folder / "state.npz") as stored:
        arrays = {k: stored[k] for k in stored.files}
    if change:
        change(arrays)
        np.savez(folder / "state.npz", **arrays)
    if header:
        content = json.loads((folder / "policy.json").read_text())
        header(content)
        (folder / "policy.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", all_policies())
def test_layouts_are_those_of_the_states(name, tmp_path):
    """Fresh, used, with arms that came and went: what a policy has is what it says it has."""
    policy = used(name)
    for step in range(3):
        arrays = {k: np.asarray(v) for k, v in policy.algorithm.state()[0].items()}
        assert set(checked_state("test", policy.algorithm, arrays)) == set(arrays)
        assert learned(load_policy(policy.save(tmp_path / "p"))) == learned(policy)
        if name.startswith("lin_ucb_full"):
            break
        policy.add_arm(f"new-{step}") if step % 2 == 0 else policy.remove_arm("arm-2")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_altered_arrays_are_refused(name, tmp_path):
    used(name).save(tmp_path / "sound")

    def check(change, words=None) -> None:
        shutil.copytree(tmp_path / "sound", tmp_path / "broken", dirs_exist_ok=True)
        rewrite(tmp_path / "broken", change)
        with pytest.raises(ProvenanceError, match=words):
            load_policy(tmp_path / "broken")

    with np.load(tmp_path / "sound" / "state.npz") as stored:
        arrays = {k: stored[k] for k in stored.files if not k.startswith("learnt_")}
    for key, value in arrays.items():
        wrong = [value[None], value.astype(str), value.astype(complex)]
        if not key.startswith("history"):  # their rows are counted by another array
            wrong.append(value[:-1] if value.size else value[None])
        if value.size and value.dtype.kind == "f":
            wrong += [np.full_like(value, np.nan), np.full_like(value, np.inf)]
        elif value.size:
            wrong += [np.full_like(value, -1), np.full_like(value, 2**60) if key != "steps" else value[:0]]
        for bad in wrong:
            check(lambda a, key=key, bad=bad: a.update({key: bad}))
        check(lambda a, key=key: a.pop(key))
    check(lambda a: a.update({"more": np.zeros(3)}), "more")
    assert load_policy(tmp_path / "sound").round == 20


HEADERS = {
    "dim": [50, -1, 2.5, "5", 10**9, None],
    "arms": [["a"], [f"arm-{i}" for i in range(60)], [], "abcd", [1, 2, 3, 4]],
    "rho": [float("nan"), -1.0, "300", None],
    "round": [-1, 1.5, 2**60],
    "share": [2.0, float("nan")],
    "keys": [[], [[1, 2]], [[-1, 2]] * 12, [[2**64, 1]] * 12, "x", [[1, 2, 3]] * 12],
    "options": [{"what": 1}, [], None],
    "name": ["nope", 7, None],
    "format": [0, 99, "3", None, True],
    "router": ["", "x" * 16, 5],
    "values": [[], 3],
    "version": [-1, "1"],
    "horizon": ["x", -1],
    "learnt_by": [["y"], 3],
    "more": [1],
}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_altered_headers_are_refused(name, tmp_path):
    policy = used(name)
    policy.save(tmp_path / "p")
    sound_text = (tmp_path / "p" / "policy.json").read_text()
    for key, value in ((key, value) for key, values in HEADERS.items() for value in values):
        (tmp_path / "p" / "policy.json").write_text(sound_text)
        rewrite(tmp_path / "p", header=lambda h, k=key, v=value: h.update({k: v}))
        free = (
            key == "dim" and not policy.algorithm.needs_context and type(value) is int and value >= 0
        ) or (key == "arms" and len(value) in (1, 60) and not policy.algorithm.layout())
        if free:
            load_policy(tmp_path / "p")
            continue
        with pytest.raises((ProvenanceError, PolicyError)) as caught:
            load_policy(tmp_path / "p")
        assert len(str(caught.value)) < 1200


@pytest.mark.parametrize("columns", [[0, 1, 2], [0, 0, 1, 2], [0, 1, 2, 4], [-2, 0, 1, 2], "x", None])
@pytest.mark.parametrize("name", ["best_single", "eagle"])
def test_arms_without_a_place_among_the_trained_ones_are_refused(name, columns, tmp_path):
    used(name).save(tmp_path / "p")
    rewrite(tmp_path / "p", header=lambda h: h["values"].update(columns=columns))
    with pytest.raises(ProvenanceError):
        load_policy(tmp_path / "p")


def test_damaged_files_are_refused(tmp_path):
    used("lin_ucb").save(tmp_path / "sound")
    data = (tmp_path / "sound" / "state.npz").read_bytes()
    rng = np.random.default_rng(0)
    for i in range(60):
        folder = tmp_path / f"p{i}"
        shutil.copytree(tmp_path / "sound", folder)
        if i % 2:
            (folder / "state.npz").write_bytes(data[: rng.integers(len(data))])
        else:
            broken = bytearray(data)
            broken[rng.integers(len(data))] ^= 1 << rng.integers(8)
            (folder / "state.npz").write_bytes(bytes(broken))
        try:
            load_policy(folder)  # a flipped bit in what zip does not read changes nothing
        except ProvenanceError:
            pass
    for text in (b"\xff\xfe", b"[]", b"null", b"{", b"[" * 100_000, b'{"name": "lin_ucb"}', b"1" * 10_000):
        (tmp_path / "sound" / "policy.json").write_bytes(text)
        with pytest.raises(ProvenanceError) as caught:
            load_policy(tmp_path / "sound")
        assert len(str(caught.value)) < 1000


def test_an_array_that_claims_to_be_enormous_takes_no_memory(tmp_path):
    used("lin_ucb").save(tmp_path / "p")
    with zipfile.ZipFile(tmp_path / "p" / "state.npz") as stored:
        entries = {n: stored.read(n) for n in stored.namelist()}
    header = (
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    )
    entries["theta.npy"] = header.ljust(127) + b"\n" + bytes(64)
    with zipfile.ZipFile(tmp_path / "p" / "state.npz", "w") as stored:
        for entry, content in entries.items():
            stored.writestr(entry, content)
    with pytest.raises(ProvenanceError, match="theta"):
        load_policy(tmp_path / "p")


def test_an_unsound_state_does_not_replace_the_saved_one(tmp_path):
    policy = used("lin_ucb")
    policy.save(tmp_path / "p")
    before = (tmp_path / "p" / "state.npz").read_bytes()
    policy.algorithm.models.theta[0, 0] = np.nan
    with pytest.raises(PolicyError, match=r"not saved: theta\[0, 0\] is nan"):
        policy.save(tmp_path / "p")
    assert (tmp_path / "p" / "state.npz").read_bytes() == before


@pytest.mark.parametrize("name", ["cabs_d_linear", "cabs_d_neural"])
def test_arms_that_came_and_went_change_nothing_after_a_restart(name, tmp_path):
    """The meta weights go on with the constants that they began with."""
    policy = fresh(name)
    policy.add_arm("new")
    loaded = load_policy(policy.save(tmp_path / "p"))
    s = stream(5, DIM)
    for t in range(12):
        one, two = policy.decide(s.request(t, t)), loaded.decide(s.request(t, t))
        assert one.arm == two.arm and one.rho == RHO
        for router, decision in ((policy, one), (loaded, two)):
            router.update(decision, **feedback(router, t, decision))
    assert learned(policy) == learned(loaded)


def test_the_ledger_holds_what_was_added():
    ledger, rng = Ledger(), np.random.default_rng(0)
    keys = {
        (f"{int(i):016x}", int(n)) for i, n in zip(rng.integers(3, size=500), rng.integers(10_000, size=500))
    }
    keys.add(("f" * 16, 2**43))
    for key in keys:
        ledger.add(*key)
    again = Ledger.restore(*ledger.arrays())
    assert len(again) == len(keys) and all(key in again for key in keys)
    assert ("0" * 16, 10_001) not in again and ("a" * 16, 1) not in again
    instances, places, bits = ledger.arrays()
    for broken in (
        (instances[:1], places, bits),
        (instances, places[:-1], bits),
        (instances, places, bits[:, :3]),
    ):
        with pytest.raises(ValueError):
            Ledger.restore(*broken)


def test_an_error_of_a_part_that_a_policy_reads_itself_is_one_of_the_saved_policy(tmp_path, monkeypatch):
    folder = used("lin_ucb").save(tmp_path / "saved")

    def fail(self, folder):
        raise KeyError("weights")

    monkeypatch.setattr(policy_class("lin_ucb"), "load_parts", fail)
    with pytest.raises(ProvenanceError, match="cannot be read as a saved policy"):
        load_policy(folder)
