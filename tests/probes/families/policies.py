"""The public interface of every policy: build, decide, update, arms, save, load, decisions as JSON, lanes.

A probe plays some rounds with one router as a caller should, and between them does what nobody should. Whatever is
accepted must leave a sound state and sound decisions behind; what is wrong for sure must be refused.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.catalog import all_policies
from cabs_core.policies import Decision, Policy, Request, build_policy, load_policy, policy_class
from cabs_core.policies.lanes import Lane
from cabs_core.policies.saving import sound
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay.engine import make_stream

from ..mutations import ANYTHING, NO_NUMBERS, broken_array, broken_bytes, broken_json, odd_layout, pick
from ..runner import Nonsense

COUNT, QUICK = 900, 70
NAMES = [n for n in all_policies() if n != "oracle_best"]
RHO = 300.0
PARTS = ("context", "predicted_scores", "predicted_costs", "static_costs")
SHAPES = ((1, 2), (3, 4), (5, 3), (4, 7))


def _router(name: str, stream, **change: Any) -> Policy:
    options = {"hidden": 4, "batch": 2} if "neural" in name else {}
    given = {
        "arms": stream.arms,
        "dim": stream.shape[2],
        "rho": RHO,
        "offline": stream.offline,
        "horizon": 500,
    }
    return build_policy(name, **given | {"binary_share": stream.share} | options | change)


def prepare() -> dict[str, Any]:
    """Streams by size, and which parts of a request each policy reads; compiles what the probes use."""
    streams = {
        (k, d): make_stream(synthetic_problem(n=40, K=k, d=d, seed=2, offline=20, latencies=True), RHO)
        for k, d in SHAPES
    }
    reads = {}
    for name in NAMES:
        stream = streams[3, 4]
        request = stream.request(0, 0)
        router = _router(name, stream)
        _feed(router, stream, 0, router.decide(request))
        if not policy_class(name).learns:
            continue
        reads[name] = {
            p for p in PARTS if _refuses(router, dataclasses.replace(request, **{p: np.full(2, np.nan)}))
        }
    return {"streams": streams, "reads": reads}


def _refuses(router: Policy, request: Request) -> bool:
    from cabs_core.errors import PolicyError

    try:
        router.decide(request)
    except PolicyError:
        return True
    return False


def _feedback(router: Policy, stream, row: int, decision: Decision) -> dict[str, Any]:
    k = len(decision.arms)
    found: dict[str, Any] = {
        "score": float(row % 2),
        "cost": 1e-4,
        "deltas": np.zeros(k),
        "latency_penalty": 0.01,
    }
    if router.full_feedback:
        found |= {"all_scores": np.full(k, 0.5), "all_costs": np.full(k, 1e-4)}
    return found


def _feed(router: Policy, stream, row: int, decision: Decision) -> bool:
    return router.update(decision, **_feedback(router, stream, row, decision))


def _check(router: Policy, decision: Decision | None = None) -> None:
    """Nonsense unless the state is sound, and the decision one that this router can make."""
    arrays, _ = router.state()
    if "history_x" not in arrays or router.round % 7 == 0:
        sound("after a probe", router, {k: np.asarray(v) for k, v in arrays.items()})
    if decision is not None:
        pmf, k = decision.pmf, len(router.arms)
        fine = (
            0 <= decision.arm < k
            and pmf.shape == (k,)
            and np.isfinite(pmf).all()
            and abs(pmf.sum() - 1) < 1e-6
        )
        if not fine or not 0 < decision.probability <= 1 + 1e-9 or pmf[decision.arm] <= 0:
            raise Nonsense(
                f"a decision for arm {decision.arm} of {k}, probability {decision.probability}, pmf {pmf}"
            )


class _Session:
    """One router under probing: what it is, what waits for feedback, and the requests that fit it."""

    def __init__(self, tally, rng, ready, name: str):
        self.tally, self.rng, self.ready, self.name = tally, rng, ready, name
        self.shape = pick(rng, SHAPES)
        self.stream = ready["streams"][self.shape]
        self.router = tally.sound(lambda: _router(name, self.stream))
        self.waiting: list[Decision] = []

    def request(self) -> Request:
        """A sound request for today's arms."""
        row, k = int(self.rng.integers(40)), len(self.router.arms)
        r = self.stream.request(row, row)
        if k == self.shape[0]:
            return r
        ones = np.full(k, 0.5)
        return Request(
            context=r.context, predicted_scores=ones, predicted_costs=ones * 1e-4, surrogate=np.zeros((k, k)),
            static_scores=dict.fromkeys([*r.static_scores, getattr(self.router, "key", "")], ones), static_costs=ones * 1e-4,
            embedding=r.embedding, prompt_length=r.prompt_length,
        )  # fmt: skip

    def decide(self) -> None:
        """A sound round."""
        request = self.request()
        decision = self.tally.sound(lambda: self.router.decide(request))
        _check(self.router, decision)
        self.waiting.append(decision)

    def learn(self) -> None:
        """Feedback of any earlier decision, sometimes through JSON, always delivered twice."""
        if not self.waiting:
            return
        decision = self.waiting.pop(int(self.rng.integers(len(self.waiting))))
        if self.rng.random() < 0.5:
            text = json.dumps(self.tally.sound(decision.to_dict))
            decision = self.tally.sound(lambda: Decision.from_dict(json.loads(text)))
        self.tally.sound(lambda: _feed(self.router, self.stream, decision.round, decision))
        if self.tally.sound(lambda: _feed(self.router, self.stream, decision.round + 1, decision)):
            raise Nonsense("feedback was learnt twice")

    def broken_request(self) -> None:
        """One part of a request cannot be."""
        request, rng = self.request(), self.rng
        part = pick(rng, (*PARTS, "rho", "available", "surrogate", "static_scores", "layout", "anything"))
        must = ""
        if part in PARTS:
            how, value = broken_array(rng, getattr(request, part))
            must = f"{part} {how}" if part in self.ready["reads"].get(self.name, ()) else ""
            request = dataclasses.replace(request, **{part: value})
        elif part == "rho":
            bad = pick(rng, [v for v in NO_NUMBERS if v is not None])
            request, must = dataclasses.replace(request, rho=bad), f"rho {bad!r}"
        elif part == "layout":
            same = {p: odd_layout(rng, getattr(request, p)) for p in PARTS}
            decision = self.tally.sound(lambda: self.router.decide(dataclasses.replace(request, **same)))
            _check(self.router, decision)
            return
        elif part == "anything":
            value = pick(rng, ANYTHING)
            request = (
                value
                if rng.random() < 0.3
                else dataclasses.replace(
                    request, **{pick(rng, [f.name for f in dataclasses.fields(Request)]): value}
                )
            )
        elif part == "static_scores":
            scores = {k: broken_array(rng, v)[1] for k, v in request.static_scores.items()}
            request = dataclasses.replace(request, static_scores=pick(rng, (scores, None, [1], {1: 2})))
        else:
            how, value = broken_array(rng, np.ones(len(self.router.arms)))
            request = dataclasses.replace(request, **{part: value})
        decision = self.tally.tried(lambda: self.router.decide(request), must_fail=must)
        if decision is not None:
            _check(self.router, decision)
            self.waiting.append(decision)

    def broken_outcome(self) -> None:
        """A score, cost or penalty that is no number, or arrays that do not fit."""
        if not self.waiting:
            return
        decision, rng = self.waiting[-1], self.rng
        given = _feedback(self.router, self.stream, 1, decision)
        what = pick(
            rng, ("score", "cost", "latency_penalty", "deltas", "all_scores", "all_costs", "anything")
        )
        if what in ("score", "cost", "latency_penalty"):
            bad = pick(rng, NO_NUMBERS)
            self.tally.tried(
                lambda: self.router.update(decision, **given | {what: bad}), must_fail=f"{what} {bad!r}"
            )
        elif what == "anything":
            self.tally.tried(
                lambda: self.router.update(pick(rng, ANYTHING), **given), must_fail="no decision"
            )
        else:
            how, value = broken_array(rng, np.full(len(decision.arms), 0.5))
            if value is not None:
                self.tally.tried(
                    lambda: self.router.update(decision, **given | {what: value}),
                    must_fail=f"{what} {how}" * (what != "all_costs" or how != "huge"),
                )
        _check(self.router)

    def broken_decision(self) -> None:
        """A field of a decision altered, its memory altered, or its JSON."""
        if not self.waiting:
            return
        decision, rng, must = self.waiting[-1], self.rng, ""
        given = _feedback(self.router, self.stream, 1, decision)
        how = rng.random()
        if how < 0.3:
            name = pick(rng, [f.name for f in dataclasses.fields(Decision)])
            value = pick(rng, ANYTHING)
            altered = dataclasses.replace(decision, **{name: value})
            if name == "arm" and not (isinstance(value, int) and 0 <= value < len(decision.arms)):
                must = f"arm {value!r}"
            if name == "router":
                must = "another router"
        elif how < 0.6 and decision.memory:
            name = pick(rng, [n for n in decision.memory if n != "trace"])
            way, value = broken_array(rng, decision.memory[name])
            altered = dataclasses.replace(decision, memory={**decision.memory, name: value})
            must = f"memory[{name!r}] {way}" * (way != "-inf")
        else:
            data = broken_json(rng, json.loads(json.dumps(decision.to_dict())))
            altered = self.tally.tried(lambda: Decision.from_dict(data))
            if altered is None:
                return
        self.tally.tried(lambda: self.router.update(altered, **given), must_fail=must)
        _check(self.router)

    def foreign_decision(self) -> None:
        """A decision of another router: of another policy, of another size, or a twin."""
        other = self.ready["streams"][pick(self.rng, SHAPES)]
        name = pick(self.rng, (self.name, "lin_ucb", "cabs_mix", "random"))
        router = self.tally.sound(lambda: _router(name, other))
        decision = self.tally.sound(lambda: router.decide(other.request(0, 0)))
        given = _feedback(self.router, other, 0, decision)
        self.tally.tried(
            lambda: self.router.update(decision, **given), must_fail="a decision of another router"
        )

    def arms(self) -> None:
        """Arms come and go, under names that are and are not possible."""
        rng, router = self.rng, self.router
        if getattr(router, "predictor_settings", None):
            return  # predicts for the arms that it was fitted on, whatever the request says
        name = pick(
            rng, (*router.arms, "new", f"arm {rng.integers(99)}", "", "\x00", "é" * 50, None, 7, ["a"], b"a")
        )
        before = router.arms
        change = router.add_arm if rng.random() < 0.5 and len(before) < 8 else router.remove_arm
        self.tally.tried(lambda: change(name))
        if len(router.arms) - len(before) not in (-1, 0, 1) or len(set(router.arms)) != len(router.arms):
            raise Nonsense(f"arms {before} became {router.arms}")
        _check(router)

    def files(self) -> None:
        """Saved and loaded; then the files are damaged and loaded again."""
        rng, folder = self.rng, Path(tempfile.mkdtemp(prefix="probe-"))
        try:
            self.tally.sound(lambda: self.router.save(folder / "p"))
            again = self.tally.sound(lambda: load_policy(folder / "p"))
            if (
                again.router != self.router.router
                or again.round != self.router.round
                or again.arms != self.router.arms
            ):
                raise Nonsense("a saved policy came back as another")
            self._damage(folder / "p")
            broken = self.tally.tried(lambda: load_policy(folder / "p"))
            if broken is not None:
                _check(broken)
                if broken.arms == self.router.arms and broken.dim == self.router.dim:
                    request = self.request()
                    decision = self.tally.tried(lambda: broken.decide(request))
                    if decision is not None:
                        self.tally.tried(lambda: _feed(broken, self.stream, 0, decision))
            self.router = again if rng.random() < 0.5 else self.router
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _damage(self, folder: Path) -> None:
        rng, how = self.rng, self.rng.random()
        header, arrays = folder / "policy.json", folder / "state.npz"
        if how < 0.35:
            header.write_text(json.dumps(broken_json(rng, json.loads(header.read_text()))))
        elif how < 0.5:
            path = pick(rng, (header, arrays))
            path.write_bytes(broken_bytes(rng, path.read_bytes()))
        else:
            with np.load(arrays) as stored:
                found = {k: stored[k] for k in stored.files}
            if not found:
                return
            name = pick(rng, list(found))
            way, value = broken_array(rng, found[name])
            if way in ("no array", "objects", "masked"):
                value = found[name][:0]
            np.savez(arrays, **found | {name: value})

    def built_wrong(self) -> None:
        """A constructor's argument that cannot be."""
        rng = self.rng
        what = pick(rng, ("arms", "dim", "rho", "offline", "horizon", "share", "keys", "seed", "option"))
        value = pick(rng, (*ANYTHING, 50, 10**6, 10**9, -5, ["a", "a"], ["a"] * 3, [1, 2], list("abcdefgh")))
        if what == "offline":
            value = self.ready["streams"][pick(rng, SHAPES)].offline
        if what == "option":
            settings = policy_class(self.name).parse(self.name, {})
            what = pick(rng, [*type(settings).model_fields, "unheard_of"])
        if what in ("dim", "hidden", "batch") and isinstance(value, int) and 100 < value < 10**9:
            value = 10**9  # what fits into memory is no error, only slow
        router = self.tally.tried(lambda: _router(self.name, self.stream, **{what: value}))
        if router is not None and router.dim == self.shape[1] and len(router.arms) == self.shape[0]:
            request = self.stream.request(0, 0)
            decision = self.tally.tried(lambda: router.decide(request))
            if decision is not None:
                _check(router, decision)
                self.tally.tried(lambda: _feed(router, self.stream, 0, decision))
                _check(router)

    def lanes(self) -> None:
        """Rounds of a replay, and lanes that do not fit."""
        rng, router = self.rng, self.router
        if len(router.arms) != self.shape[0]:
            return
        lane = Lane.empty(np.arange(40), experts=router.experts)
        kind = type(router)
        if rng.random() < 0.4:
            self.tally.sound(
                lambda: kind.run_lanes([router], self.stream, [lane], 0, int(rng.integers(1, 20)), 1)
            )
            _check(router)
            return
        field = pick(rng, ("order", "arrivals", "actions", "propensities", "gaps"))
        value = broken_array(rng, np.arange(40))[1] if rng.random() < 0.5 else pick(rng, ANYTHING)
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" and rng.random() < 0.7:
            with np.errstate(all="ignore"):
                value = value.astype(np.int64) if field != "gaps" else value
        if value is not None or field != "arrivals":
            lane = dataclasses.replace(lane, **{field: value})
        stop = pick(rng, (5, 40, 41, 10**9, -1, 2.5, None))
        self.tally.tried(
            lambda: kind.run_lanes([router], self.stream, [lane], pick(rng, (0, 0, 0, -3, 7)), stop, 1)
        )
        _check(router)


STEPS = ("decide", "learn", "broken_request", "broken_outcome", "broken_decision", "foreign_decision", "arms", "files",
         "built_wrong", "lanes")  # fmt: skip
WEIGHTS = np.array([4, 3, 4, 3, 5, 1, 1.5, 2, 1.5, 1.5])


def probe(tally, rng, ready) -> None:
    """A dozen steps with one router; the last ones are sound."""
    session = _Session(tally, rng, ready, pick(rng, NAMES))
    session.decide()
    for step in rng.choice(STEPS, size=12, p=WEIGHTS / WEIGHTS.sum()):
        getattr(session, step)()
    session.decide()
    session.learn()
