"""Checks of a bundle: comparison with the replay and with the deployed bundle, and the time of a decision.

rho is in score units per USD.
"""

import math
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
from cabs_core.router.promotion import Comparison, Difference, judge
from cabs_core.router.router import Router

#: Prompts whose requests are computed together.
TOGETHER = 128
#: Fewest decisions whose percentiles `measure_latency` returns, however slow a decision is
FEWEST_TIMED = 50


@dataclass(frozen=True)
class Match:
    """Comparison of a bundle's decisions with the replay's, prompt by prompt in the order of trial 0.

    Attributes:
        rounds: number of decisions that the bundle made from the problem's stored embeddings.
        different: number of those that differ from the replay's.
        first: round of the first one that differs. None if none does.
        largest: largest difference of a context, prediction, static score or surrogate, over some 200 to 400
            of the rounds that are spread evenly (over all of fewer rounds).
        text_rounds, text_different: the same as `rounds` and `different`, for prompts that were embedded
            again, one at a time. 0 if no prompts were given.
        embedding: largest difference of such an embedding from the stored one. Embeddings depend on the batch
            in the last bits.
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
        """True if bundle and replay decide alike on the same embeddings.

        Decisions from texts do not count, since their embeddings may differ in the last bits.
        """
        return self.different == 0


def check_bundle_matches_replay(
    folder: str | Path,
    problem: ReplayProblem,
    *,
    prompts: Sequence[str] | None = None,
    rounds: int | None = None,
    text_rounds: int = 200,
) -> Match:
    """Play a problem through a bundle, from text or embedding to update, and compare with its replay.

    Args:
        folder: the folder of the bundle.
        problem: the problem from which the bundle was made, with embeddings. The policy learns the outcome of
            a round before the next round.
        prompts: texts of the problem's queries, in its order. None embeds no prompt again.
        rounds: number of rounds of trial 0 to play, from the first. None plays all.
        text_rounds: number of those rounds to play from the text as well.

    Raises:
        ProvenanceError: the bundle was made from another problem, or has learnt since, or the problem has no
            embeddings.
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
    played = replay(
        problem,
        manifest.policy,
        manifest.rho,
        [0],
        source["seed"],
        pool=manifest.pool,
        threads=1,
        options=source["options"],
    )
    expected = played.actions[0]
    rows = played.order[0]
    if rounds is not None:
        rows = rows[:rounds]
    if prompts is None:
        text_rows = rows[:0]
    else:
        text_rows = rows[: min(text_rounds, len(rows))]
    heads = Heads.of_bundle(folder)
    largest = 0.0
    actions_from_texts = np.zeros(0, dtype=np.int64)
    gap = 0.0
    with one_blas_thread():
        actions = play_bundle(folder, heads, problem, rows, problem.embeddings)
        for row in rows[:: max(1, len(rows) // 200)]:
            largest = max(largest, _difference(heads, problem, int(row)))
        if prompts is not None and len(text_rows):
            encoder = TextEncoder(manifest.encoder, manifest.identity, folder)
            vectors = np.zeros_like(problem.embeddings)
            for row in text_rows:
                vectors[row] = encoder.encode([prompts[int(row)]])[0]
            gap = float(np.abs(vectors[text_rows] - problem.embeddings[text_rows]).max())
            actions_from_texts = play_bundle(folder, heads, problem, text_rows, vectors)
    different = np.flatnonzero(actions != expected[: len(rows)])
    return Match(
        rounds=len(rows),
        different=len(different),
        first=int(different[0]) if len(different) else None,
        largest=largest,
        text_rounds=len(text_rows),
        text_different=int((actions_from_texts != expected[: len(text_rows)]).sum()),
        embedding=gap,
    )


def play_bundle(
    folder: str | Path, heads: Heads, problem: ReplayProblem, rows: np.ndarray, embeddings: np.ndarray
) -> np.ndarray:
    """Return the arms that a bundle's policy plays if it learns from every play before the next prompt.

    The requests of `TOGETHER` prompts are computed together, since a search of neighbours for one prompt
    costs as much as for dozens. `_difference` checks requests that are computed alone.

    Args:
        folder: the folder of the bundle. Its policy is loaded afresh, so that nothing is learnt for later.
        heads: the bundle's predictors, which compute the inputs of the policy.
        problem: the problem whose scores and costs the policy learns from.
        rows: `[m]` queries of the problem to play, in order.
        embeddings: `[n, e]` embeddings of all queries of the problem. Only those of `rows` are read.

    Returns:
        The index of the arm of each of the rows, `[m]`.
    """
    lengths = problem.prompt_lengths
    assert lengths is not None
    policy = load_policy(Path(folder) / "policy")
    arms = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        requests = heads.requests(embeddings[part], lengths[part])
        for t, (row, request) in enumerate(zip(part, requests, strict=True), start):
            decision = policy.decide(request)
            arms[t] = decision.arm
            score = float(problem.scores[row, decision.arm])
            cost = float(problem.costs[row, decision.arm])
            policy.update(decision, score, cost)
    return arms


def _difference(heads: Heads, problem: ReplayProblem, row: int) -> float:
    """Return the largest difference between the policy's inputs for a prompt, computed alone, and those that
    the problem holds.
    """
    embeddings = problem.embeddings
    lengths = problem.prompt_lengths
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
    """Time of decisions from text on one machine, milliseconds.

    Attributes:
        decisions: number of decisions that were timed.
        encoder_p50, encoder_p99: median and 99th percentile of the time of the encoder.
        rest_p50, rest_p99: the same of the rest of a decision.
        total_p50, total_p99: the same of whole decisions.
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
    most_seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Time decisions from text, one at a time, on one thread, with a log in memory.

    Args:
        folder: the folder of the bundle.
        prompts: texts, at least one. They are taken in turn, and a repeated prompt is embedded again.
        decisions: largest number of decisions to time.
        warmup: number of decisions before the first that is timed.
        most_seconds: seconds after which no further decision is timed, once `FEWEST_TIMED` have been.
        clock: function that returns seconds. `time.process_time` measures processor time.

    Raises:
        RouterError: there is no prompt, or `decisions` < 1.
    """
    if not len(prompts) or decisions < 1:
        raise RouterError("measuring latency needs prompts and at least one decision")
    router = Router.load(folder)
    encoder_times: list[float] = []
    rest_times: list[float] = []
    spent = 0.0
    with one_blas_thread():
        for i in range(-warmup, decisions):
            if len(rest_times) >= FEWEST_TIMED and spent >= most_seconds:
                break
            text = prompts[(i + warmup) % len(prompts)]
            router.forget()
            begin = clock()
            router.embed([text])
            middle = clock()
            router.route(text)
            end = clock()
            if i >= 0:
                encoder_times.append(middle - begin)
                rest_times.append(end - middle)
                spent += end - begin
    router.close()
    encoder = np.array(encoder_times)
    rest = np.array(rest_times)
    percentiles = []
    for seconds in (encoder, rest, encoder + rest):
        for percent in (50, 99):
            percentiles.append(float(1e3 * np.percentile(seconds, percent)))
    return Latency(len(rest), *percentiles)


def compare_with_champion(
    champion: str | Path,
    challenger: str | Path,
    prompts: Sequence[str],
    problem: ReplayProblem,
    *,
    rho: float | None = None,
    margin: float = MARGIN,
) -> Comparison:
    """Compare two bundles that play held-out outcomes in the same order and learn as they go.

    The comparison is paired over queries. In a table with gaps, both bundles learn from real answers alone,
    and the difference is estimated from these (see `cabs_core.algorithms.problem.gaps`). If missing answers
    cannot be known, the interval holds whatever they would be.

    Args:
        champion, challenger: folders of the bundles.
        prompts: texts of the problem's queries, in its order. Neither bundle has seen them.
        rho: cost sensitivity of the utilities that are compared. None takes the challenger's.
        margin: largest loss of utility a request that is accepted.

    Raises:
        RouterError: a model of a bundle has no outcomes in the problem.
    """
    if rho is None:
        rho = read_manifest(challenger).rho
    else:
        rho = float(rho)
    old = played_arms(champion, prompts, problem, rho)
    new = played_arms(challenger, prompts, problem, rho)
    return compare_plays(problem, old, new, rho, margin=margin)


def compare_plays(
    problem: ReplayProblem, old: np.ndarray, new: np.ndarray, rho: float, *, margin: float = MARGIN
) -> Comparison:
    """Compare the plays of two bundles on a problem, paired over its queries, and judge by the margin.

    Args:
        old, new: arms of champion and challenger, `[n]` in the order of the problem's queries.
        rho, margin: as of `compare_with_champion`.
    """
    every = np.arange(problem.n)
    utility = real_values(problem, rho).utility
    low = utility.copy()
    high = utility.copy()
    if problem.observed is not None:
        unknown = np.zeros(problem.K, dtype=bool)
        unknown[unknown_arms(problem)] = True
        nobody_knows = (problem.observed == 0) & unknown
        low[nobody_knows] = 0.0
        high[nobody_knows] = 1.0
    # a real answer of a model that was seldom asked counts as often as its weight
    heaviest = 1.0
    if problem.observed is not None:
        weight = real_weights(problem.observed)
        heaviest = max(1.0, float(weight[every, old].max()), float(weight[every, new].max()))

    def gains(ours: np.ndarray, theirs: np.ndarray) -> PairedSample:
        """Return the sample of the challenger's gains, which are 0 where both play the same model.

        Args:
            ours: utilities of the challenger's plays, `[n, K]`. theirs: of the champion's.
        """
        gap = np.where(new == old, 0.0, ours[every, new] - theirs[every, old])
        worst = max(heaviest, float(np.abs(gap).max(initial=0.0)))
        return PairedSample.of(gap, clusters=problem.clusters, worst=worst)

    found = gains(utility, utility)
    least = gains(low, high)
    most = gains(high, low)
    samples = (found, least, most)
    intervals = [sample.interval(LEVEL / 2) for sample in samples]
    below = max(sample.mean - ends[0] for sample, ends in zip(samples, intervals, strict=True))
    above = max(ends[1] - sample.mean for sample, ends in zip(samples, intervals, strict=True))
    difference = Difference(
        champion=float(utility[every, old].mean()),
        challenger=float(utility[every, new].mean()),
        mean=found.mean,
        se=max(sample.standard_error for sample in samples),
        decisions=problem.independent,
        interval_distances=(below, above),
        collected=problem.asked / problem.n,
        unknown=(found.mean - least.mean, most.mean - found.mean),
        method="paired" if problem.observed is None else "paired, from real answers",
    )
    return judge(difference, margin)


def played_arms(folder: str | Path, prompts: Sequence[str], problem: ReplayProblem, rho: float) -> np.ndarray:
    """Return the arms of the problem that a bundle plays on prompts in order, `[n]`.

    The policy's own decisions are played, without the random exploration that a router adds to them. A policy
    that draws at random itself does so here too, from a stream that the bundle's id fixes. The policy learns
    from the score and cost of each arm that it plays, if the problem has them. The folder is not changed.

    Args:
        folder: the folder of the bundle.
        prompts: texts of the problem's queries, in its order.
        problem: the problem that holds the scores and costs.
        rho: cost sensitivity that each request asks for, if the policy can serve any rho. Other policies
            decide at the rho that they were made for.

    Raises:
        RouterError: a model of the bundle has no outcomes in the problem.
    """
    bundle = Bundle.read(folder)
    policy = bundle.policy
    names = bundle.manifest.names
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
            arm = columns[decision.arm]
            played[i] = arm
            if problem.observed is None or problem.observed[i, arm] > 0:
                policy.update(decision, float(problem.scores[i, arm]), float(problem.costs[i, arm]))
    return played
