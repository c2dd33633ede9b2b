"""Replays of a pool with their queries, for figures that need more than means.

Marts hold means over queries. Figures on single queries, rounds or prompts are computed here from the files
of the replays. Costs are in USD, and rho is in units of a score per USD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.algorithms.problem.folds import join_folds
from cabs_core.algorithms.problem.gaps import Cells, real_values
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError, ProvenanceError, ResultError
from cabs_core.base.statistics.uncertainty import mean_error, score_interval
from cabs_core.data.inputs import fold_folder, folds_of
from cabs_core.data.pool_files.sections import Replay
from cabs_core.evaluation.metrics.frontier import pareto_mask

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.storage import StoredTrace
    from cabs_core.report.data import PoolData


#: names of the values that replays store by query and by trial
_VALUES = ("utility", "score", "cost")


#: columns of `examples`, for a frame without rows too
_EXAMPLE_COLUMNS = ["hit", "query_id", "task", "prompt", "model", "score", "cost", "scores"]


@dataclass(frozen=True)
class Played:
    """Means of one policy at every rho, by query and by trial.

    Attributes:
        policy: name of the policy.
        rhos: `[R]` values of rho, rising.
        plays: `[R, n]` number of rounds that had the query.
        utility, score, cost: `[R, n]` mean over these rounds; 0 for a query without plays.
        trials: {"utility", "score", "cost": `[R, trials]` mean over the rounds of the trial}.
    """

    policy: str
    rhos: np.ndarray
    plays: np.ndarray
    utility: np.ndarray
    score: np.ndarray
    cost: np.ndarray
    trials: dict[str, np.ndarray]

    def mean(self, name: str) -> np.ndarray:
        """Return the mean over all rounds, `[R]`, of "utility", "score" or "cost"."""
        means: np.ndarray = (self.plays * getattr(self, name)).sum(axis=1) / self.plays.sum(axis=1)
        return means


@dataclass(frozen=True)
class Evidence:
    """Replays of a pool, all of one problem.

    Attributes:
        problem: scores, costs, tasks and predictions of the replayed queries.
        folders: {(policy, rho): folder of the replay}.
        prompts: {query_id: text}; empty if the outcome table is not at hand.
        again: function that replays a policy at a rho, for replays whose rounds were deleted to save space.
            None if nothing can be replayed.
    """

    problem: ReplayProblem
    folders: dict[tuple[str, float], Path]
    prompts: dict[str, str]
    again: Callable[[str, float], StoredTrace] | None = None

    @cached_property
    def _traces(self) -> dict[tuple[str, float], StoredTrace]:
        """Cache {(policy, rho): rounds} of the replays that `trace` played again, empty at first."""
        return {}

    @cached_property
    def _played(self) -> dict[str, Played]:
        """Cache {policy: means} of the policies that `played` was called for, empty at first."""
        return {}

    @property
    def from_rounds(self) -> bool:
        """True if means are computed from rounds, because the outcome table has gaps."""
        return self.problem.observed is not None

    def played(self, policy: str) -> Played:
        """Return the means of a policy at every rho at which it was replayed."""
        if policy not in self._played:
            self._played[policy] = self._means(policy)
        return self._played[policy]

    def real(self) -> Cells:
        """Return scores and costs of all models, `[n, K]` each.

        If the outcome table has gaps, both hold estimates, of which only means over queries say something.
        """
        return real_values(self.problem, 0.0)

    def _means(self, policy: str) -> Played:
        """Read or compute the means of a policy at every rho."""
        rhos = np.array(sorted(rho for name, rho in self.folders if name == policy))
        if self.from_rounds:
            means_at = self._means_of_rounds
        else:
            means_at = self._stored_means
        by_query: dict[str, list[np.ndarray]] = {name: [] for name in ("plays", *_VALUES)}
        by_trial: dict[str, list[np.ndarray]] = {name: [] for name in _VALUES}
        for rho in rhos.tolist():
            query_means, trial_means = means_at(policy, rho)
            for name, values in query_means.items():
                by_query[name].append(values)
            for name, values in trial_means.items():
                by_trial[name].append(values)
        return Played(
            policy=policy,
            rhos=rhos,
            plays=np.array(by_query["plays"]),
            utility=np.array(by_query["utility"]),
            score=np.array(by_query["score"]),
            cost=np.array(by_query["cost"]),
            trials={name: np.array(rows) for name, rows in by_trial.items()},
        )

    def _stored_means(self, policy: str, rho: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the means that a replay stored: ({name: `[n]` by query}, {name: `[trials]` by trial})."""
        folder = self.folders[policy, rho]
        queries = _table(folder / "queries.parquet")
        trials = _table(folder / "trials.parquet").sort_values("trial")
        place = queries["query_index"].to_numpy()
        by_query: dict[str, np.ndarray] = {}
        for name in ("plays", *_VALUES):
            by_query[name] = np.zeros(self.problem.n)
            by_query[name][place] = queries[name].to_numpy(dtype=float)
        return by_query, {name: trials[name].to_numpy(dtype=float) for name in _VALUES}

    def _means_of_rounds(
        self, policy: str, rho: float
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute from rounds what `_stored_means` reads from files, with estimates in place of gaps."""
        trace = self.trace(policy, rho)
        cells = real_values(self.problem, rho)
        query = trace.order.ravel()
        plays = np.bincount(query, minlength=self.problem.n).astype(float)
        by_query: dict[str, np.ndarray] = {"plays": plays}
        by_trial: dict[str, np.ndarray] = {}
        for name in _VALUES:
            earned = getattr(cells, name)[trace.order, trace.actions]
            by_query[name] = np.bincount(query, earned.ravel(), self.problem.n) / np.maximum(plays, 1)
            by_trial[name] = earned.mean(axis=1)
        return by_query, by_trial

    def trace(self, policy: str, rho: float) -> StoredTrace:
        """Return every round of one replay.

        A replay whose rounds were deleted is played again, once, by the function `again`.

        Raises:
            ResultError: the rounds cannot be read, or were deleted and `again` is None.
        """
        from cabs_core.evaluation.replay.storage import load_trace  # noqa: PLC0415  (numba, which a page without traces does without)

        folder = self.folders[policy, rho]
        if self.again is None or (folder / "rounds.parquet").is_file():
            return load_trace(folder)
        if (policy, rho) not in self._traces:
            self._traces[policy, rho] = self.again(policy, rho)
        return self._traces[policy, rho]


def load_evidence(
    data: PoolData,
    *,
    problem: Path | None = None,
    outcomes: Path | None = None,
    again: Callable[[str, float], StoredTrace] | None = None,
) -> Evidence | None:
    """Load the replays that the marts of a pool were made from.

    Replays of other problems, such as those of an earlier pool file, of policies that the marts lack, and of
    rhos that are not compared are left out. Under the condition `sessions` the costs of the problem become
    those of a model that answers whole conversations.

    Args:
        problem, outcomes: folders of the artifacts `replay_problem` and `outcomes`, if they are elsewhere
            than in the artifacts of the pool.
        again: see `Evidence`.

    Returns:
        None if the files of the problem are missing, damaged or of another problem than that of the marts, or
        if no replay is left.

    Raises:
        ResultError: the file `run.parquet` of a replay is damaged.
    """
    pool = data.pool
    artifacts_dir = data.artifacts_dir
    problem_hash = str(data.info["problem_hash"])
    settings = data.settings.get("replay")
    folder = problem or artifacts_dir / "replay_problem" / pool
    try:
        loaded = join_folds([ReplayProblem.load(place, verify=False) for place in _test_folders(folder)])
    except (ProvenanceError, DataError, ResultError, OSError):
        return None
    if loaded.content_hash() != problem_hash:
        return None
    folders = {}
    for path in sorted((artifacts_dir / "replay" / pool).glob("*/*/run.parquet")):
        run = _table(path, ["policy", "rho", "problem_hash"]).iloc[0]
        is_of_pool = run["problem_hash"] == problem_hash and run["policy"] in data.board.index
        if is_of_pool and float(run["rho"]) in data.compared:
            folders[str(run["policy"]), float(run["rho"])] = path.parent
    if not folders:
        return None
    if settings and settings["condition"] == "sessions":
        from cabs_core.evaluation.replay.conditions import with_kept_costs  # noqa: PLC0415  (numba: this page only)

        loaded = with_kept_costs(loaded, pool, Replay.model_validate(settings))
    return Evidence(loaded, folders, _prompts(outcomes or artifacts_dir / "outcomes" / pool), again)


def _test_folders(folder: Path) -> list[Path]:
    """Return the folders of the test problems of all folds in the artifact `replay_problem`."""
    return [fold_folder(folder, fold) / "test" for fold in range(folds_of(folder))]


def _prompts(folder: Path) -> dict[str, str]:
    """Read {query_id: prompt} from an outcome table; empty if the table cannot be read."""
    try:
        table = _table(folder / "queries.parquet", ["query_id", "prompt"])
    except ResultError:
        return {}
    return dict(zip(table["query_id"], table["prompt"], strict=True))


def _table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read columns of a parquet file, or all columns.

    Raises:
        ResultError: the file is missing or damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns, use_threads=False).to_pandas()
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultError(f"{path} cannot be read ({error}): make this partition again") from None


# ---- figures from replays


def single_models(evidence: Evidence) -> pd.DataFrame:
    """Table of every model alone on the replayed queries, by falling mean score.

    Columns: model, score (mean), low and high (ends of its 95 % interval), cost (USD per 1,000 requests), and
    front (bool): no other model is at least as cheap and scores at least as high, and is better in one of
    both. If the outcome table has gaps, means are estimates, and a cost that is estimated below 0 is 0.
    """
    problem = evidence.problem
    cells = evidence.real()
    score = cells.score.mean(axis=0)
    cost = np.maximum(1000 * cells.cost.mean(axis=0), 0.0)
    frame = pd.DataFrame({"model": problem.arms, "score": score, "cost": cost})
    intervals = [
        score_interval(mean, mean_error(values, clusters=problem.clusters))
        for values, mean in zip(cells.score.T, score, strict=True)
    ]
    frame[["low", "high"]] = intervals
    frame["front"] = pareto_mask(cost, score)
    return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def frontier_points(evidence: Evidence, policy: str) -> pd.DataFrame:
    """Table of a policy at every rho.

    Columns: rho, score (mean), low and high (ends of its 95 % interval), cost (USD per 1,000 requests).
    """
    played = evidence.played(policy)
    frame = pd.DataFrame(
        {"rho": played.rhos, "score": played.mean("score"), "cost": 1000 * played.mean("cost")}
    )
    intervals = []
    for r, mean in enumerate(frame["score"]):
        error = mean_error(
            played.score[r],
            played.plays[r],
            evidence.problem.clusters,
            trials=played.trials["score"][r],
        )
        intervals.append(score_interval(mean, error))
    frame[["low", "high"]] = intervals
    return frame


def routing_by_task(evidence: Evidence, policy: str, rho: float) -> pd.DataFrame:
    """Table of the models that a policy plays for each task at one rho, the most frequent task first.

    The means are over all rounds of all trials. Columns: task, queries (number), score (mean), cost (USD per
    1,000 requests), model (the one that is played most) and share (of the rounds that play this model),
    best_model (the one with the highest mean score on the task's queries) and best_score (that mean).
    """
    problem = evidence.problem
    trace = evidence.trace(policy, rho)
    real = evidence.real()
    query = trace.order.ravel()
    action = trace.actions.ravel()
    if trace.costs is None:
        cost = real.cost[query, action]
    else:
        cost = trace.costs.ravel()
    rounds = pd.DataFrame(
        {
            "task": problem.tasks[query],
            "model": np.array(problem.arms)[action],
            "score": real.score[query, action],
            "cost": 1000 * cost,
        }
    )
    rows = []
    for task, rounds_of_task in rounds.groupby("task", sort=False):
        is_task = problem.tasks == task
        means = real.score[is_task].mean(axis=0)
        best = int(means.argmax())
        shares = rounds_of_task["model"].value_counts(normalize=True)
        rows.append(
            {
                "task": task,
                "queries": int(is_task.sum()),
                "score": rounds_of_task["score"].mean(),
                "cost": rounds_of_task["cost"].mean(),
                "model": shares.index[0],
                "share": shares.iloc[0],
                "best_model": problem.arms[best],
                "best_score": means[best],
            }
        )
    table = pd.DataFrame(rows)
    return table.sort_values(["queries", "task"], ascending=[False, True], ignore_index=True)


def _costs(problem: ReplayProblem, trace: StoredTrace) -> np.ndarray:
    """Return the cost of every round in USD, `[trials, T]`.

    The costs are those that the trace holds. If it holds none, they are the problem's costs of the played
    query and model.
    """
    if trace.costs is not None:
        return trace.costs
    costs: np.ndarray = problem.costs[trace.order, trace.actions]
    return costs


def examples(evidence: Evidence, policy: str, rho: float) -> pd.DataFrame:
    """Table of prompts that a policy routed well, then of prompts that it did not, each in stream order.

    The prompts are of the second half of the first trial, and all models answered them. Up to three hits
    scored 0.5 or more for no more than the models' mean cost of the query. Up to three misses scored less
    than 0.5, although another model scored 0.5 or more.

    Columns: hit (bool), query_id, task, prompt, model, score, cost (USD), scores ({model: score}).
    """
    problem = evidence.problem
    trace = evidence.trace(policy, rho)
    half = trace.order.shape[1] // 2
    query = trace.order[0, half:]
    action = trace.actions[0, half:]
    score = problem.scores[query, action]
    cost = _costs(problem, trace)[0, half:]
    best = problem.scores[query].max(axis=1)
    is_full = np.ones(len(query), dtype=bool)
    if problem.observed is not None:
        is_full = problem.observed[query].all(axis=1)
    hits = np.flatnonzero(is_full & (score >= 0.5) & (cost <= problem.costs[query].mean(axis=1)))[:3]
    misses = np.flatnonzero(is_full & (score < 0.5) & (best >= 0.5))[:3]
    rows = []
    for hit, places in ((True, hits), (False, misses)):
        for i in places:
            place = query[i]
            name = str(problem.query_ids[place])
            rows.append(
                {
                    "hit": hit,
                    "query_id": name,
                    "task": str(problem.tasks[place]),
                    "prompt": evidence.prompts.get(name, ""),
                    "model": problem.arms[action[i]],
                    "score": float(score[i]),
                    "cost": float(cost[i]),
                    "scores": dict(zip(problem.arms, problem.scores[place].tolist(), strict=True)),
                }
            )
    return pd.DataFrame(rows, columns=_EXAMPLE_COLUMNS)


def shares_over_rounds(evidence: Evidence, policy: str, rho: float, windows: int = 20) -> pd.DataFrame:
    """Table of the share of each model in equal windows of rounds, as a mean over trials.

    Columns: round (the last one of the window, from 1), model, share.
    """
    problem = evidence.problem
    trace = evidence.trace(policy, rho)
    edges = np.unique(np.linspace(0, trace.actions.shape[1], windows + 1).astype(int))
    rows = []
    for start, stop in pairwise(edges):
        counts = np.bincount(trace.actions[:, start:stop].ravel(), minlength=problem.K)
        for arm, count in zip(problem.arms, counts, strict=True):
            rows.append({"round": int(stop), "model": arm, "share": count / counts.sum()})
    return pd.DataFrame(rows)


def calibration(evidence: Evidence, bins: int = 10) -> pd.DataFrame:
    """Table of predicted and real scores of all models on the replayed queries, in bins of equal width.

    Columns: predicted (mean of the bin), score (mean real score), low and high (ends of its 95 % interval),
    count (of the scores in the bin). The interval takes the scores of all models on a prompt, and of all
    prompts of a cluster, as dependent. The bins divide [0, 1], and predictions outside go to the first or the
    last bin. Empty bins and gaps of the table are left out.
    """
    problem = evidence.problem
    if problem.clusters is None:
        cluster = np.arange(problem.n)
    else:
        cluster = problem.clusters
    frame = pd.DataFrame(
        {
            "predicted": problem.predicted_scores.ravel(),
            "score": problem.scores.ravel(),
            "cluster": cluster.repeat(problem.K),
        }
    )
    if problem.observed is not None:
        frame = frame[problem.observed.ravel() > 0]
    rows = []
    for _, part in frame.groupby(np.clip((frame["predicted"] * bins).astype(int), 0, bins - 1)):
        mean = float(part["score"].mean())
        ends = score_interval(mean, mean_error(part["score"], clusters=part["cluster"]))
        rows.append((part["predicted"].mean(), mean, ends[0], ends[1], len(part)))
    return pd.DataFrame(rows, columns=["predicted", "score", "low", "high", "count"])


def smallest_propensities(evidence: Evidence) -> pd.DataFrame:
    """Table of the smallest propensity of each policy over all rounds, trials and rhos.

    Columns: policy, smallest (propensity), share_below (share of the rounds with a propensity below 0.01).
    The policy with the smallest propensity comes first.
    """
    columns = ["policy", "trials", "rounds", "smallest_propensity", "small_propensities"]
    runs = pd.concat(_table(folder / "run.parquet", columns) for folder in evidence.folders.values())
    runs["played"] = runs["trials"] * runs["rounds"]
    runs["below"] = runs["small_propensities"] * runs["played"]
    sums = runs.groupby("policy").agg(
        smallest=("smallest_propensity", "min"), below=("below", "sum"), played=("played", "sum")
    )
    shares = sums.assign(share_below=sums["below"] / sums["played"]).reset_index()
    return shares[["policy", "smallest", "share_below"]].sort_values(
        ["smallest", "policy"], ignore_index=True
    )
