"""Checks of a bundle: the replay's decisions, how long one takes, and whether it is better than the one
deployed.

rho is in score units per USD.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.problem.gaps import real_values, unknown_arms
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import ProvenanceError, RouterError
from cabs_core.base.statistics.paired import PairedSample
from cabs_core.base.statistics.uncertainty import LEVEL, real_weights
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.pool_files.sections import MARGIN
from cabs_core.evaluation.replay.engine import replay
from cabs_core.router.bundle import read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.heads import Heads
from cabs_core.router.loaded import Bundle
from cabs_core.router.promotion import Comparison, judge
from cabs_core.router.router import Router

#: prompts whose requests are computed together
TOGETHER = 128


@dataclass(frozen=True)
class Match:
    """How a bundle's decisions compare with the replay's, prompt by prompt in the order of trial 0.

    Attributes:
        rounds, different, first: decisions from the stored embeddings, how many differ, the first that does.
        largest: largest difference of a context, prediction or surrogate.
        text_rounds, text_different: the same with prompts embedded again, one at a time.
        embedding: largest difference of an embedding; the numbers depend on the batch in the last bits.
    """

    rounds: int
    different: int
    first: int | None
    largest: float
    text_rounds: int
    text_different: int
    embedding: float

    @property
    def passed(self) -> bool:
        """Whether bundle and replay decide alike on the same embeddings."""
        return self.different == 0


def check_bundle_matches_replay(
    folder: str | Path,
    problem: ReplayProblem,
    *,
    prompts: Sequence[str] | None = None,
    rounds: int | None = None,
    text_rounds: int = 200,
) -> Match:
    """Play a problem through the bundle (text or embedding to update) and compare with its replay.

    Args:
        problem: the problem that the bundle was chosen for, with embeddings; outcomes arrive at once.
        prompts: texts of the problem's queries, in its order; None: embeddings are not made again.
        rounds: of trial 0 to play; None: all. text_rounds: of those, to play from the text as well.

    Raises:
        ProvenanceError: the bundle was made from another problem, or has learnt since.
    """
    manifest = read_manifest(folder)
    source = manifest.provenance
    if source.get("problem") != problem.content_hash() or "continued" in source:
        raise ProvenanceError(
            f"{folder} was made from problem {source.get('problem')}, or has learnt since; this is "
            f"{problem.content_hash()}: compare it with the problem that it was made from"
        )
    if problem.embeddings is None or problem.prompt_lengths is None:
        raise ProvenanceError(f"problem {problem.pool}/{problem.name} has no embeddings: build it again")
    options = source["options"]
    played = replay(
        problem,
        manifest.policy,
        manifest.rho,
        [0],
        source["seed"],
        pool=manifest.pool,
        threads=1,
        options=options,
    )
    rows, expected = played.order[0], played.actions[0]
    rows = rows[: len(rows) if rounds is None else rounds]
    heads = Heads.of_bundle(folder)
    largest = 0.0
    with one_blas_thread():
        actions = play_bundle(folder, heads, problem, rows, problem.embeddings)
        for row in rows[:: max(1, len(rows) // 200)]:
            largest = max(largest, _difference(heads, problem, int(row)))
        different = np.flatnonzero(actions != expected[: len(rows)])
        actions_from_texts, gap = np.zeros(0, dtype=np.int64), 0.0
        text_rows = rows[: min(text_rounds, len(rows))] if prompts is not None else rows[:0]
        if prompts is not None and len(text_rows):
            encoder = TextEncoder(manifest.encoder, manifest.identity, folder)
            vectors = np.zeros_like(problem.embeddings)
            for row in text_rows:
                vectors[row] = encoder.encode([prompts[int(row)]])[0]
            gap = float(np.abs(vectors[text_rows] - problem.embeddings[text_rows]).max())
            actions_from_texts = play_bundle(folder, heads, problem, text_rows, vectors)
    return Match(
        len(rows),
        len(different),
        int(different[0]) if len(different) else None,
        largest,
        len(text_rows),
        int((actions_from_texts != expected[: len(text_rows)]).sum()),
        gap,
    )


def play_bundle(
    folder: str | Path, heads: Heads, problem: ReplayProblem, rows: np.ndarray, embeddings: np.ndarray
) -> np.ndarray:
    """Arms `[rows]` that a bundle's policy plays from embeddings `[n, e]`, one by one, with rewards at once.

    What the requests predict is computed for some prompts together: of many train prompts, a search of
    neighbours for one costs as much as for dozens. `_difference` and prompts played from texts see one alone.
    """
    lengths = problem.prompt_lengths
    assert lengths is not None
    policy = load_policy(Path(folder) / "policy")
    arms = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        for t, (row, request) in enumerate(zip(part, heads.requests(embeddings[part], lengths[part])), start):
            decision = policy.decide(request)
            arms[t] = decision.arm
            score, cost = float(problem.scores[row, decision.arm]), float(problem.costs[row, decision.arm])
            policy.update(decision, score, cost)
    return arms


def _difference(heads: Heads, problem: ReplayProblem, row: int) -> float:
    """Largest difference between the policy's inputs for a prompt, computed alone, and the problem's."""
    embeddings, lengths = problem.embeddings, problem.prompt_lengths
    assert embeddings is not None and lengths is not None  # `check_bundle_matches_replay` asks for both
    request = heads.requests(embeddings[row : row + 1], lengths[row : row + 1])[0]
    pairs = [
        (request.context, problem.contexts[row]),
        (request.predicted_scores, problem.predicted_scores[row]),
        (request.predicted_costs, problem.predicted_costs[row]),
        *((value, problem.static_scores[name][row]) for name, value in request.static_scores.items()),
    ]
    if callable(request.surrogate) and problem.surrogate_deltas is not None:
        for arm in range(problem.K):
            deltas = request.surrogate(arm, float(problem.scores[row, arm]))
            pairs.append((deltas, problem.surrogate_deltas[row, arm]))
    return max((float(np.abs(a - b).max()) for a, b in pairs if a is not None), default=0.0)


@dataclass(frozen=True)
class Latency:
    """Time of whole decisions from text, milliseconds: the encoder, the rest, the sum.

    A machine's measurement.
    """

    decisions: int
    encoder_p50: float
    encoder_p99: float
    rest_p50: float
    rest_p99: float
    total_p50: float
    total_p99: float


def measure_latency(
    folder: str | Path,
    prompts: Sequence[str],
    *,
    decisions: int = 200,
    warmup: int = 20,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Time decisions from text, one at a time, on one thread, log in memory included.

    Args:
        prompts: at least one; they are taken in turn, and a repeated prompt is embedded again.
        clock: seconds; `time.process_time` for processor time.

    Raises:
        RouterError: no prompts, or decisions < 1.
    """
    if not len(prompts) or decisions < 1:
        raise RouterError("measuring latency needs prompts and at least one decision")
    router = Router.load(folder)
    encoder, rest = np.empty(decisions), np.empty(decisions)
    with one_blas_thread():
        for i in range(-warmup, decisions):
            text = prompts[(i + warmup) % len(prompts)]
            router.forget()
            begin = clock()
            router.embed([text])
            middle = clock()
            router.route(text)
            end = clock()
            if i >= 0:
                encoder[i], rest[i] = middle - begin, end - middle
    router.close()
    parts = [1e3 * np.percentile(v, q) for v in (encoder, rest, encoder + rest) for q in (50, 99)]
    return Latency(decisions, *(float(p) for p in parts))


def compare_with_champion(
    champion: str | Path,
    challenger: str | Path,
    prompts: Sequence[str],
    problem: ReplayProblem,
    *,
    rho: float | None = None,
    margin: float = MARGIN,
) -> Comparison:
    """Both bundles play held-out outcomes in the same order, learning as they go; paired over queries.

    Of a table with gaps, both learn from real answers alone, and the difference is estimated from these
    (`problem.gaps`). Where missing answers cannot be known, the interval holds whatever they would be.

    Args:
        prompts: of the problem's queries, held out: seen by neither.
        rho: cost sensitivity of the utilities compared; None: the challenger's.
        margin: largest loss of utility a request that is accepted.

    Raises:
        RouterError: an arm of a bundle has no outcomes here.
    """
    rho = read_manifest(challenger).rho if rho is None else float(rho)
    old, new = (played_arms(folder, prompts, problem, rho) for folder in (champion, challenger))
    return compare_plays(problem, old, new, rho, margin=margin)


def compare_plays(
    problem: ReplayProblem, old: np.ndarray, new: np.ndarray, rho: float, *, margin: float = MARGIN
) -> Comparison:
    """Arms `new` against arms `old`, `[n]` of the problem's queries, paired: see `compare_with_champion`."""
    every, utility = np.arange(problem.n), real_values(problem, rho).utility
    low, high = utility.copy(), utility.copy()
    if problem.observed is not None:
        unknown = np.zeros(problem.K, dtype=bool)
        unknown[unknown_arms(problem)] = True
        nobody_knows = (problem.observed == 0) & unknown
        low[nobody_knows], high[nobody_knows] = 0.0, 1.0

    # a real answer of a model that was seldom asked counts as often as its weight
    heaviest = 1.0
    if problem.observed is not None:
        weight = real_weights(problem.observed)
        heaviest = max(1.0, float(weight[every, old].max()), float(weight[every, new].max()))

    def gained(ours: np.ndarray, theirs: np.ndarray) -> PairedSample:
        """Sample of the challenger's gains, which are 0 where both play the same model."""
        gap = np.where(new == old, 0.0, ours[every, new] - theirs[every, old])
        worst = max(heaviest, float(np.abs(gap).max(initial=0.0)))
        return PairedSample.of(gap, clusters=problem.clusters, worst=worst)

    found = gained(utility, utility)
    least = gained(low, high)
    most = gained(high, low)
    samples = (found, least, most)
    intervals = [sample.interval(LEVEL / 2) for sample in samples]
    below = max(sample.mean - ends[0] for sample, ends in zip(samples, intervals, strict=True))
    above = max(ends[1] - sample.mean for sample, ends in zip(samples, intervals, strict=True))
    return judge(
        float(utility[every, old].mean()),
        float(utility[every, new].mean()),
        found.mean,
        max(sample.standard_error for sample in samples),
        problem.independent,
        margin,
        reach=(below, above),
        collected=problem.asked / problem.n,
        unknown=(found.mean - least.mean, most.mean - found.mean),
        how="paired" if problem.observed is None else "paired, from real answers",
    )


def played_arms(folder: str | Path, prompts: Sequence[str], problem: ReplayProblem, rho: float) -> np.ndarray:
    """`[n]` arms of the problem that a bundle plays on these prompts in order, without exploring.

    Raises:
        RouterError: an arm of the bundle has no outcomes here.
    """
    bundle = Bundle.read(folder)
    policy, names = bundle.policy, bundle.manifest.names
    missing = [arm for arm in names if arm not in problem.arms]
    if missing:
        raise RouterError(
            f"{folder} chooses {missing[0]!r}, for which there are no outcomes: {list(problem.arms)}"
        )
    columns = [problem.arms.index(arm) for arm in names]
    policy.algorithm.reseed("compare", bundle.manifest.id)
    played = np.empty(len(prompts), dtype=np.int64)
    served = rho if policy.algorithm.any_rho_now() else None
    with one_blas_thread():
        vectors = bundle.encoder.encode(list(prompts))
        for i, text in enumerate(prompts):
            request = bundle.heads.requests(vectors[i : i + 1], np.array([float(len(text))]))[0]
            decision = policy.decide(replace(request, rho=served))
            arm = played[i] = columns[decision.arm]
            if problem.observed is None or problem.observed[i, arm] > 0:
                policy.update(decision, float(problem.scores[i, arm]), float(problem.costs[i, arm]))
    return played
