"""What was played and on what: the replays of a pool, their queries, and the outcome table behind them.

The marts hold means. What needs single queries, rounds or prompts is computed from here.

rho is in score units per USD.
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
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.data.inputs import fold_folder, folds_of
from cabs_core.data.pool_files.sections import Replay
from cabs_core.evaluation.metrics.frontier import pareto_mask

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.storage import StoredTrace
    from cabs_core.report.data import PoolData


_VALUES = ("utility", "score", "cost")


@dataclass(frozen=True)
class Played:
    """One policy at every rho: means of each query and of each trial.

    Attributes:
        rhos: [R] rising; plays, utility, score, cost: [R, n] (0 plays: the other values are 0).
        trials: {utility, score, cost: [R, trials]}.
    """

    policy: str
    rhos: np.ndarray
    plays: np.ndarray
    utility: np.ndarray
    score: np.ndarray
    cost: np.ndarray
    trials: dict[str, np.ndarray]

    def mean(self, name: str) -> np.ndarray:
        """[R] mean over rounds of utility, score or cost."""
        means: np.ndarray = (self.plays * getattr(self, name)).sum(axis=1) / self.plays.sum(axis=1)
        return means


@dataclass(frozen=True)
class Evidence:
    """Replays of a pool that belong to one problem, and that problem.

    Attributes:
        problem: scores, costs, tasks and predictions of the replayed queries.
        folders: {(policy, rho): folder of the replay}.
        prompts: {query_id: text}; empty where the outcome table is not at hand.
        again: plays (policy, rho) again, whose rounds were pruned; None: it cannot be done.
    """

    problem: ReplayProblem
    folders: dict[tuple[str, float], Path]
    prompts: dict[str, str]
    again: Callable[[str, float], StoredTrace] | None = None

    @cached_property
    def _traces(self) -> dict[tuple[str, float], StoredTrace]:
        return {}

    @cached_property
    def _played(self) -> dict[str, Played]:
        return {}

    @property
    def from_rounds(self) -> bool:
        """Whether means are taken over the rounds: of a table with gaps, whose cells are estimates."""
        return self.problem.observed is not None

    def played(self, policy: str) -> Played:
        """Return means of queries and trials of a policy, over the rhos at which it was replayed."""
        if policy not in self._played:
            self._played[policy] = self._means(policy)
        return self._played[policy]

    def real(self) -> Cells:
        """Scores and costs of the models `[n, K]`; of a table with gaps, estimates of their means."""
        return real_values(self.problem, 0.0)

    def _means(self, policy: str) -> Played:
        """As the replays stored them, or from the rounds and what `problem.gaps` makes of every cell."""
        rhos = np.array(sorted(rho for name, rho in self.folders if name == policy))
        arrays = {name: np.zeros((len(rhos), self.problem.n)) for name in ("plays", *_VALUES)}
        trials: dict[str, list[np.ndarray]] = {name: [] for name in _VALUES}
        for r, rho in enumerate(rhos):
            if not self.from_rounds:
                folder = self.folders[policy, rho]
                queries = _table(folder / "queries.parquet")
                means = _table(folder / "trials.parquet").sort_values("trial")
                for name, values in arrays.items():
                    values[r, queries["query_index"].to_numpy()] = queries[name].to_numpy(dtype=float)
                for name, rows in trials.items():
                    rows.append(means[name].to_numpy(dtype=float))
                continue
            trace, cells = self.trace(policy, rho), real_values(self.problem, rho)
            query = trace.order.ravel()
            plays = arrays["plays"][r] = np.bincount(query, minlength=self.problem.n)
            for name, rows in trials.items():
                got = getattr(cells, name)[trace.order, trace.actions]
                arrays[name][r] = np.bincount(query, got.ravel(), self.problem.n) / np.maximum(plays, 1)
                rows.append(got.mean(axis=1))
        return Played(policy, rhos, **arrays, trials={k: np.array(v) for k, v in trials.items()})

    def trace(self, policy: str, rho: float) -> StoredTrace:
        """Every round of one replay; played again where the rounds were pruned."""
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
    """The replays behind what a pool's marts compare; None where files are not at hand or of another problem.

    Replays of other problems, and of rhos that are not compared, are left out, such as those of an earlier
    pool file. Under condition sessions costs of the problem become those of a model that answers whole
    conversations.

    Args:
        problem, outcomes: folders of the artifacts `replay_problem` and `outcomes`, if the store has them
            elsewhere.
        again: see `Evidence`.
    """
    pool, artifacts_dir, problem_hash = data.pool, data.artifacts_dir, str(data.info["problem_hash"])
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
        of_pool = run["problem_hash"] == problem_hash and run["policy"] in data.board.index
        if of_pool and float(run["rho"]) in data.compared:
            folders[str(run["policy"]), float(run["rho"])] = path.parent
    if not folders:
        return None
    if settings and settings["condition"] == "sessions":
        from cabs_core.evaluation.replay.conditions import with_kept_costs  # noqa: PLC0415  (numba: this page only)

        loaded = with_kept_costs(loaded, pool, Replay.model_validate(settings))
    return Evidence(loaded, folders, _prompts(outcomes or artifacts_dir / "outcomes" / pool), again)


def _test_folders(folder: Path) -> list[Path]:
    """Folders of the test problems of all folds in the artifact `replay_problem`."""
    return [fold_folder(folder, fold) / "test" for fold in range(folds_of(folder))]


def _prompts(folder: Path) -> dict[str, str]:
    try:
        table = _table(folder / "queries.parquet", ["query_id", "prompt"])
    except ResultError:
        return {}
    return dict(zip(table["query_id"], table["prompt"], strict=True))


def _table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns, use_threads=False).to_pandas()
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultError(f"{path} cannot be read ({error}): make this partition again") from None


# ---- facts


def single_models(evidence: Evidence) -> pd.DataFrame:
    """Every model alone on the replayed queries: model, score with the ends `low` and `high` of its 95 %
    interval, cost (USD per 1,000), front.

    `front`: no other model is at least as cheap and scores at least as high, and is better in one of the two.
    """
    p, cells = evidence.problem, evidence.real()
    score, cost = cells.score.mean(axis=0), 1000 * cells.cost.mean(axis=0)
    frame = pd.DataFrame({"model": p.arms, "score": score, "cost": cost})
    intervals = [
        mean_error(values, clusters=p.clusters).of_a_score(mean)
        for values, mean in zip(cells.score.T, score, strict=True)
    ]
    frame[["low", "high"]] = intervals
    frame["front"] = pareto_mask(cost, score)
    return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def frontier_points(evidence: Evidence, policy: str) -> pd.DataFrame:
    """A policy by rho: rho, score with `low` and `high` of its 95 % interval, cost (USD per 1,000)."""
    played = evidence.played(policy)
    frame = pd.DataFrame(
        {"rho": played.rhos, "score": played.mean("score"), "cost": 1000 * played.mean("cost")}
    )
    of_rhos = zip(played.plays, played.score, played.trials["score"], frame["score"], strict=True)
    frame[["low", "high"]] = [
        mean_error(score, plays, evidence.problem.clusters, trials=trials).of_a_score(mean)
        for plays, score, trials, mean in of_rhos
    ]
    return frame


def routing_by_task(evidence: Evidence, policy: str, rho: float) -> pd.DataFrame:
    """What a policy does with each task at one rho, over all rounds of all trials; most frequent task first.

    Columns: task, queries, score, cost (USD per 1,000), model (most played), share (of it), best_model
    (highest mean score on the task's queries) and best_score.
    """
    p, trace = evidence.problem, evidence.trace(policy, rho)
    query, action, real = trace.order.ravel(), trace.actions.ravel(), evidence.real()
    cost = trace.costs.ravel() if trace.costs is not None else real.cost[query, action]
    rounds = pd.DataFrame(
        {
            "task": p.tasks[query],
            "model": np.array(p.arms)[action],
            "score": real.score[query, action],
            "cost": 1000 * cost,
        }
    )
    rows = []
    for task, of_task in rounds.groupby("task", sort=False):
        here = p.tasks == task
        means = real.score[here].mean(axis=0)
        shares = of_task["model"].value_counts(normalize=True)
        most, share, best = shares.index[0], shares.iloc[0], int(means.argmax())
        earned = of_task["score"].mean(), of_task["cost"].mean()
        rows.append((task, int(here.sum()), *earned, most, share, p.arms[best], means[best]))
    columns = ["task", "queries", "score", "cost", "model", "share", "best_model", "best_score"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(["queries", "task"], ascending=[False, True], ignore_index=True)


def _costs(problem: ReplayProblem, trace: StoredTrace) -> np.ndarray:
    """USD `[trials, T]` of what was played."""
    if trace.costs is not None:
        return trace.costs
    costs: np.ndarray = problem.costs[trace.order, trace.actions]
    return costs


def examples(evidence: Evidence, policy: str, rho: float) -> pd.DataFrame:
    """Prompts of the first trial's second half that were answered right cheaply, or missed, in order.

    Of the prompts that all models answered: up to three that scored 0.5 or more at no more than the models'
    mean cost for the query, and up to three that scored less although another model scored 0.5 or more.

    Columns: hit (bool), query_id, task, prompt, model, score, cost (USD), scores ({model: score}).
    """
    p, trace = evidence.problem, evidence.trace(policy, rho)
    half = trace.order.shape[1] // 2
    query, action = trace.order[0, half:], trace.actions[0, half:]
    score, cost = p.scores[query, action], _costs(p, trace)[0, half:]
    best = p.scores[query].max(axis=1)
    real = np.ones(len(query), dtype=bool) if p.observed is None else p.observed[query].all(axis=1)
    hits = np.flatnonzero(real & (score >= 0.5) & (cost <= p.costs[query].mean(axis=1)))[:3]
    misses = np.flatnonzero(real & (score < 0.5) & (best >= 0.5))[:3]
    rows = []
    for hit, places in ((True, hits), (False, misses)):
        for i in places:
            q = query[i]
            name, scores = str(p.query_ids[q]), dict(zip(p.arms, p.scores[q].tolist(), strict=True))
            asked = p.arms[action[i]], float(score[i]), float(cost[i])
            rows.append((hit, name, str(p.tasks[q]), evidence.prompts.get(name, ""), *asked, scores))
    columns = ["hit", "query_id", "task", "prompt", "model", "score", "cost", "scores"]
    return pd.DataFrame(rows, columns=columns)


def shares_over_rounds(evidence: Evidence, policy: str, rho: float, windows: int = 20) -> pd.DataFrame:
    """Share of each model in equal windows, mean over trials: round (end of window), model, share."""
    p, trace = evidence.problem, evidence.trace(policy, rho)
    edges = np.unique(np.linspace(0, trace.actions.shape[1], windows + 1).astype(int))
    rows = []
    for start, stop in pairwise(edges):
        counts = np.bincount(trace.actions[:, start:stop].ravel(), minlength=p.K)
        rows += [
            {"round": int(stop), "model": arm, "share": c / counts.sum()}
            for arm, c in zip(p.arms, counts, strict=True)
        ]
    return pd.DataFrame(rows)


def calibration(evidence: Evidence, bins: int = 10) -> pd.DataFrame:
    """Predicted against realised (real) scores of all models on the replayed queries, in bins of equal width.

    Columns: predicted, score, low and high (its 95 % interval; all models of a prompt, and all prompts of a
    cluster, are one observation), count; empty bins are left out.
    """
    p = evidence.problem
    cluster = np.arange(p.n) if p.clusters is None else p.clusters
    frame = pd.DataFrame(
        {
            "predicted": p.predicted_scores.ravel(),
            "score": p.scores.ravel(),
            "cluster": cluster.repeat(p.K),
        }
    )
    if p.observed is not None:
        frame = frame[p.observed.ravel() > 0]
    rows = []
    for _, part in frame.groupby(np.clip((frame["predicted"] * bins).astype(int), 0, bins - 1)):
        mean = float(part["score"].mean())
        ends = mean_error(part["score"], clusters=part["cluster"]).of_a_score(mean)
        rows.append((part["predicted"].mean(), mean, *ends, len(part)))
    return pd.DataFrame(rows, columns=["predicted", "score", "low", "high", "count"])


def smallest_propensities(evidence: Evidence) -> pd.DataFrame:
    """The smallest probability with which each policy played what it played, over all rounds.

    Columns: policy, smallest, share_below (of rounds with a probability below 0.01); the smallest first.
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
