"""Off-policy estimates of the utility that a pool's policies would have earned on logged traffic.

The log is the one of a router (`router.events.sqlite`), a log of calls that `cabs_core.read_log` reads, or
the test prompts of a pool whose source is a log. Policies are evaluated as they start: fitted on the pool's
train split, with nothing learnt from these decisions. An estimate that the log does not support is refused,
with the reason.

rho is in score units per USD.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.registry import policy_class, policy_of_trial
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import is_deployable
from cabs_core.base.errors import DataError, PolicyError, RouterError
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.events.log import EventLog
from cabs_core.data.inputs import FoldData, embeddings_of, fold_folder, outcomes_of, split_of, tuned_options
from cabs_core.data.logs.read import read_log
from cabs_core.data.outcomes.from_logs import is_event_log
from cabs_core.data.pool_files import ModelPool, PoolFile
from cabs_core.data.pool_files.sections import LogFile
from cabs_core.evaluation.ope.data import LoggedData, read_events, read_outcomes, read_table
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.evaluation.replay.engine import make_stream
from cabs_core.router.build import BUNDLE
from cabs_core.router.bundle import read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.heads import Heads, needs_of

#: Leading components of the embeddings that the models of outcomes see.
COMPONENTS = 32

#: Columns of the table of plays on the prompts of a log. `plays` is a probability.
PLAYED = ("fold", "part", "policy", "rho", "query_id", "model", "plays")
#: Columns of facts about the log of an estimate.
_FACTS = ("n_eff", "max_weight", "mean_weight", "coverage")
#: Columns of an estimate. They are empty if the log cannot tell.
_OUTCOME = (
    "outcome",
    "estimator",
    "value",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "no_interval",
    "manski_width",
)


def read_decisions(
    place: str | Path,
    bundle: str | Path,
    written: LogFile | None = None,
    merged: Mapping[str, str] | None = None,
) -> LoggedData:
    """Read the scored decisions of a log as arrays, with embeddings, for the models of a bundle.

    Decisions of an event log are not `adaptive` if the bundle's policy does not learn.

    Args:
        place: an event log (SQLite file, PostgreSQL URL), or a log of calls (`cabs_core.read_log`), whose
            prompts are embedded with the bundle's encoder.
        bundle: folder of the bundle.
        written: format and columns of a log of calls. None reads a table with the usual columns.
        merged: {name in the log: model} of models that go by several names.

    Raises:
        DataError: a log of calls cannot be read, a column is absent, a value is impossible, or there is no
            scored decision.
        LogError: an event log cannot be opened or read. LogError is a RouterError, not a DataError.
        ProvenanceError: the bundle is missing or damaged.
    """
    manifest = read_manifest(bundle)
    if is_event_log(place):
        log = EventLog(place, read_only="://" not in str(place))
        try:
            data = read_events(log, manifest.names, identity=manifest.identity, components=COMPONENTS)
            if policy_class(manifest.policy).learns:
                return data
            return replace(data, adaptive=False)
        finally:
            log.close()
    written = written or LogFile(path=str(place))
    calls = read_log(
        place,
        written.format,
        written.columns.chosen(),
        written.score_range,
        rows=written.rows,
        score_words=written.score_words,
        scores=written.scores,
    )
    unique, index = np.unique(calls.frame["prompt"].to_numpy(dtype=object), return_inverse=True)
    encoder = TextEncoder(manifest.encoder, manifest.identity, bundle)
    batches = [encoder.encode(unique[i : i + 64].tolist()) for i in range(0, len(unique), 64)]
    vectors = np.concatenate(batches)[index]
    return read_table(calls, arms=manifest.names, embeddings=vectors, components=COMPONENTS, merged=merged)


def merged_names(pool: ModelPool) -> dict[str, str]:
    """Return {name in a log: model of the pool} of the models that go by several names."""
    merged: dict[str, str] = {}
    for model, names in pool.names_in_source().items():
        if len(names) > 1:
            merged |= dict.fromkeys(names, model)
    return merged


def held_out(inputs: Mapping[str, Path], *, adaptive: bool = False) -> tuple[LoggedData, list[str]]:
    """Return the decisions on the first fold's test prompts of a pool whose source is a log, and the texts.

    Args:
        inputs: {stage: folder} of the artifacts outcomes, splits and prompt_embeddings.
        adaptive: True if the logging policy learned from its own decisions, as of `LoggedData`.

    Returns:
        the decisions with embeddings, and the text of every decision.
    """
    rows = np.flatnonzero(split_of(inputs) == "test")
    outcomes = outcomes_of(inputs)
    test = outcomes.take(rows)
    data = read_outcomes(
        test, np.asarray(embeddings_of(inputs)[rows]), adaptive=adaptive, components=COMPONENTS
    )
    return replace(data, clusters=outcomes.clusters[rows]), test.prompts


def probabilities(
    pool: ModelPool,
    inputs: Mapping[str, Path],
    data: LoggedData,
    policy: str,
    rho: float,
    fold: int = 0,
) -> np.ndarray:
    """Return the probabilities with which a policy, as it starts, would play today's models, `[n, K]`.

    Models that were not available for a decision have probability 0.

    Args:
        inputs: {stage: folder} of the artifacts oracles, replay_problem and tuning.
        data: n decisions of a log with embeddings.
        policy: name of the policy.
        rho: cost sensitivity at which the policy decides.
        fold: the policy is fitted and tuned without the prompts that this fold holds out.

    Raises:
        DataError: the log has no embeddings, or its models are not the pool's.
    """
    if data.embeddings is None or data.lengths is None:
        raise DataError("the log has no embeddings: policies cannot be asked what they would play")
    problem = ReplayProblem.load(fold_folder(inputs["replay_problem"], fold) / "test")
    stream = make_stream(problem, rho)
    target = np.empty((len(data), len(data.today)))
    if data.today != problem.arms:
        raise DataError(
            f"the log is of {', '.join(data.today)}; pool {pool.name} has {', '.join(problem.arms)}"
        )
    with one_blas_thread():
        built = policy_of_trial(
            stream,
            policy,
            seed=pool.replay.order_seed,
            pool=pool.name,
            horizon=max(len(data), 1),
            options=tuned_options(inputs, fold).get(policy),
        )
        heads = Heads(Oracles.load(fold_folder(inputs["oracles"], fold)), needs_of(built))
        for i, request in enumerate(heads.requests(data.embeddings, data.lengths)):
            if data.available is None:
                mask = None
            else:
                mask = data.available[i, : len(data.today)]
            target[i] = built.decide(replace(request, available=mask)).pmf
    return target


def evaluate_pool(
    pool: ModelPool,
    inputs: Mapping[str, Path],
    data: LoggedData,
    *,
    policies: Sequence[str] = (),
    rhos: Sequence[float] = (),
    notify: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Estimate the outcomes of a pool's policies on the decisions of a log.

    Args:
        inputs: {stage: folder} of the artifacts oracles, replay_problem and tuning. The policies are those of
            the first fold.
        data: decisions of the log.
        policies: names. If empty, the policies of the pool that can be deployed are estimated; those that
            need all models' outcomes (`is_deployable`) are left out.
        rhos: cost sensitivities. If empty, all rhos of the pool are taken.
        notify: called with a message when a policy begins.

    Returns:
        one row per policy, rho, outcome and estimator, or one with the reason (`refused`) if the log cannot
        tell or the policy cannot be played. The columns are pool, policy, rho, outcome (score, cost or
        utility), estimator, value, low, high, difference (value minus what the log's own policy earned),
        difference_low, difference_high, no_interval, manski_width (see `Estimate`), refused, n, groups,
        n_eff, max_weight, mean_weight, coverage, assumed, anytime (see `Evaluation`).

    Raises:
        DataError: the log has no embeddings, or its models are not the pool's.
    """

    def play(policy: str, rho: float) -> np.ndarray:
        return probabilities(pool, inputs, data, policy, rho)

    return _estimates(pool, data, play, policies=policies, rhos=rhos, notify=notify)


def evaluate_folds(
    pool: ModelPool,
    inputs: Mapping[str, Path],
    *,
    policies: Sequence[str] = (),
    rhos: Sequence[float] = (),
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Estimate the outcomes of a pool's policies on all prompts of its own log that some fold holds out.

    Args:
        inputs: {stage: folder} of the artifacts outcomes, splits, prompt_embeddings, oracles, replay_problem,
            tuning.
        policies, rhos, notify: as of `evaluate_pool`.

    Returns:
        the rows of `evaluate_pool`, and a table with the columns `PLAYED`: the probability of every model
        that a policy would play, for each fold, part, policy, rho and query. Each fold's policies are fitted
        on its train prompts and play its test prompts and its validation prompts. With several folds every
        prompt is a test prompt of one.
    """
    folds = FoldData.read(inputs)
    vectors = np.asarray(folds.vectors)
    adaptive = bool(getattr(pool.source, "adaptive", False))
    data = read_outcomes(folds.table, vectors, adaptive=adaptive, components=COMPONENTS)
    tested = np.any([split == "test" for split in folds.splits], axis=0)
    query_ids = np.asarray(folds.table.query_ids).astype(str)
    played = []

    def play(policy: str, rho: float) -> np.ndarray:
        """Return a policy's probabilities on the test prompts of all folds.

        Its plays on the prompts that each fold does not train on are appended to `played` once it has played
        all folds, so a policy that cannot be played in one fold leaves no rows.
        """
        target = np.full((len(data), len(data.arms)), np.nan)
        plays = []
        for fold, split in enumerate(folds.splits):
            rows = np.flatnonzero(split != "train")
            chosen = probabilities(pool, inputs, data.take(rows), policy, rho, fold)
            judged = split[rows] == "test"
            target[rows[judged]] = chosen[judged]
            place, model = np.nonzero(chosen)
            columns = {
                "fold": fold,
                "part": split[rows][place],
                "policy": policy,
                "rho": rho,
                "query_id": query_ids[rows][place],
                "model": np.asarray(data.arms)[model],
                "plays": chosen[place, model],
            }
            plays.append(pd.DataFrame(columns))
        played.extend(plays)
        return target[tested]

    held = data.take(np.flatnonzero(tested))
    estimates = _estimates(pool, held, play, policies=policies, rhos=rhos, notify=notify)
    return estimates, pd.concat(played, ignore_index=True) if played else pd.DataFrame(columns=list(PLAYED))


def _estimates(
    pool: ModelPool,
    data: LoggedData,
    play: Callable[[str, float], np.ndarray],
    *,
    policies: Sequence[str],
    rhos: Sequence[float],
    notify: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return the rows of `evaluate_pool`.

    Args:
        play: returns the probabilities `[n, today's arms]` with which a policy plays the decisions at a rho.
    """
    rows = []
    for policy in policies or [p for p in pool.policies if is_deployable(p)]:
        notify(f"{policy}: estimating from {len(data):,} decisions")
        for rho in map(float, rhos or pool.replay.rhos):
            try:
                evaluation = evaluate(data, play(policy, rho), rho)
            except (PolicyError, RouterError) as error:
                # the fault of this policy: the others are estimated all the same
                refused = {
                    "pool": pool.name,
                    "policy": policy,
                    "rho": rho,
                    "refused": f"the policy cannot be played: {error}",
                    "n": len(data),
                    "groups": len(np.unique(data.groups)),
                    "assumed": data.propensities is None,
                    "anytime": data.adaptive,
                }
                rows.append(dict.fromkeys((*_FACTS, *_OUTCOME)) | refused)
                continue
            facts = {k: v for k, v in asdict(evaluation).items() if k != "rows"}
            shared = {"pool": pool.name, "policy": policy, **facts}
            if evaluation.refused:
                rows.append(shared | dict.fromkeys(_OUTCOME))
            rows += [shared | asdict(row) for row in evaluation.rows]
    return rows


def as_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows of `evaluate_pool` as an Arrow table, whose column types do not depend on the values."""
    names = ["pool", "policy", "rho", *_OUTCOME, "refused", "n", "groups", *_FACTS, "assumed", "anytime"]
    kinds = dict.fromkeys(names, pa.float64())
    kinds |= dict.fromkeys(("pool", "policy", "outcome", "estimator", "refused", "no_interval"), pa.string())
    kinds |= dict.fromkeys(("n", "groups"), pa.int64())
    kinds |= dict.fromkeys(("assumed", "anytime"), pa.bool_())
    columns = {name: pa.array([row[name] for row in rows], type=kinds[name]) for name in names}
    return pa.table(columns)


def logged_decisions(
    pool_file: PoolFile, inputs: Mapping[str, Path], log: LogFile | None = None
) -> LoggedData:
    """Read the scored decisions on which the policies of a pool with a table are evaluated.

    Args:
        pool_file: pool file of the pool.
        inputs: {stage: folder} of the inputs of the stage `off_policy`.
        log: log to read. None takes `router.log` of the pool file, else the log of the deployed router.

    Raises:
        DataError: the pool has no router, there is no log, or the log does not fit the pool.
        LogError: an event log cannot be opened or read.
    """
    pool = pool_file.pool
    written = pool_file.log_file if log is None else log
    place = pool_file.log_path if log is None else log.path
    bundle = inputs["router"] / BUNDLE
    if not bundle.is_dir():
        raise DataError(
            f"pool {pool.name} has no router (see the checks of the asset router), so no log of one"
        )
    if "://" not in str(place) and not Path(place).exists():
        raise DataError(
            f"there is no log at {place}: serve the deployed router, "
            "or name a log in the pool file (router: {log: PATH})"
        )
    return read_decisions(place, bundle, written, merged_names(pool))
