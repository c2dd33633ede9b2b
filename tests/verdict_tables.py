"""Tables whose truth is known, judged from the file to the decision.

Every table is read, checked and split as `cabs pool add` does; TF-IDF, oracles and replays are those of a
run; the verdict at two values of a right answer is the report's. The goal is answered by the rule of `cabs
report --goal` on the test queries. Truth is the mean utility of the models that the router chose over what
scores and costs may come out, weighted by how frequent each kind of prompt is. Wrong: a router is deployed
that gains nothing (nor saves 5 % at no more than a point of quality); a model is kept though a router that
was tried gains more than .02; a promise "quality at least q" that is not kept; a table that is refused.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import CabsError
from cabs_core.base.utility import clipped_utility
from cabs_core.data.encoders.tfidf import TfidfEncoder
from cabs_core.data.outcomes import split_under
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.goals import Goal
from cabs_core.data.pools.find import load_pool_file
from cabs_core.data.validation.overview import overview
from cabs_core.evaluation.answer import Decisions, GoalFound, ScoredTable, goal_answer
from cabs_core.evaluation.answer.ladder import ROUTER
from cabs_core.evaluation.replay import ReplayResult, replay
from cabs_core.report import cards
from cabs_core.report.evidence import Evidence
from cabs_core.report.gap import MATTERS, SAVES
from cabs_core.report.verdict import Verdict, verdict_at

ROUTERS = ("ridge", "lin_ucb", "hier_mix")
TOPICS, LEVELS = 6, 3
DRAWS = 4000
QUALITY = 0.95
LOST = 0.02


@dataclass(frozen=True)
class World:
    """How scores and costs of one table come about.

    Attributes:
        prompts, gaps ('none', 'random', 'hard'), kind ('right', 'graded', 'stars'), pays: what was drawn for
        the table.
        skill: `[K, TOPICS, LEVELS]` log-odds of a right answer. usd: `[K]` median cost. shared: deviation of
            what all models find hard in a prompt, beyond its words.
        rhos: two cost sensitivities.
    """

    seed: int
    prompts: int
    gaps: str
    kind: str
    pays: bool
    skill: np.ndarray
    usd: np.ndarray
    shared: float
    frequency: np.ndarray
    rhos: tuple[float, float]

    def drawn(self, rng: np.random.Generator, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(scores `[m, K]` in [0, 1], costs `[m, K]`, hardness `[m]`) of prompts of the given kinds."""
        hard = rng.normal(0, self.shared, len(kinds))
        chance = 1 / (1 + np.exp(hard[:, None] - self.skill.reshape(len(self.usd), -1).T[kinds]))
        if self.kind == "right":
            scores = (rng.random(chance.shape) < chance).astype(float)
        elif self.kind == "stars":
            scores = rng.binomial(4, chance) / 4
        else:
            scores = rng.beta(4 * chance + 1e-3, 4 * (1 - chance) + 1e-3)
        return scores, self.usd * rng.lognormal(0, 0.3, chance.shape), hard


def world(seed: int, most: int = 20_000) -> World:
    """The world of one table."""
    rng = np.random.default_rng([seed, 0])
    models = int(rng.integers(2, 13))
    pays = bool(rng.integers(2))
    level = np.sort(rng.normal(0.8, 0.8, models))
    usd = 1e-4 * np.exp(np.sort(rng.uniform(0, 4.5, models)))
    if rng.random() < 0.3:
        usd = rng.permutation(usd)  # the dearest need not be the best
    skill = np.repeat(level, TOPICS * LEVELS).reshape(models, TOPICS, LEVELS)
    if pays:
        skill = skill + rng.normal(0, 1.2, (models, TOPICS, 1)) - np.array([-1.0, 0.3, 1.6])
    return World(
        seed,
        min(int(np.exp(rng.uniform(math.log(100), math.log(20_000)))), most),
        str(rng.choice(["none", "random", "hard"])),
        str(rng.choice(["right", "graded", "stars"])),
        pays,
        skill,
        usd,
        0.8,
        rng.dirichlet(np.full(TOPICS * LEVELS, 4.0)),
        (float(f"{0.02 / usd.max():.3g}"), float(f"{0.2 / usd.max():.3g}")),
    )


def write_table(w: World, folder: Path) -> tuple[PoolFile, np.ndarray]:
    """(pool file, kind of each prompt `[n]`): the table of a world as a user would have it."""
    rng = np.random.default_rng([w.seed, 1])
    kinds = rng.choice(len(w.frequency), w.prompts, p=w.frequency)
    scores, costs, hard = w.drawn(rng, kinds)
    common, topic, level = (np.array([f"{p}{i:03d}" for i in range(900)]) for p in ("word", "topic", "level"))
    words = [
        common[rng.integers(0, 900, (w.prompts, 10))],
        topic[40 * (kinds // LEVELS)[:, None] + rng.integers(0, 40, (w.prompts, 5))],
        level[40 * (kinds % LEVELS)[:, None] + rng.integers(0, 40, (w.prompts, 3))],
    ]
    texts = np.array(
        [
            " ".join(row)
            .replace("0", "o")
            .replace("1", "l")
            .replace("2", "z")
            .replace("3", "e")
            .replace("4", "a")
            .replace("5", "s")
            .replace("6", "b")
            .replace("7", "t")
            .replace("8", "x")
            .replace("9", "g")
            for row in np.concatenate(words, axis=1)
        ]
    )
    n, k = scores.shape
    kept = np.ones((n, k), dtype=bool)
    if w.gaps == "random":
        kept = rng.random((n, k)) > rng.uniform(0.05, 0.3) * (rng.random(k) < 0.6)
    elif w.gaps == "hard":  # the cheapest was seldom tried on what is hard
        tough = (kinds % LEVELS == LEVELS - 1) if w.pays else hard > 0.5
        kept[:, int(w.usd.argmin())] = ~tough | (rng.random(n) < 0.15)
    shown = 1 + 4 * scores if w.kind == "stars" else scores
    row, model = np.nonzero(kept)
    table = pd.DataFrame(
        {
            "id": row,
            "question": texts[row],
            "model": [f"model_{j}" for j in model],
            "score": shown[row, model],
            "usd": costs[row, model],
        }
    )
    table.to_parquet(folder / "table.parquet")
    extra = ("score_range: [1, 5]\n" if w.kind == "stars" else "") + (
        "" if w.gaps == "none" else "missing: predict\n"
    )
    (folder / f"table_{w.seed}.yaml").write_text(
        "source: {kind: file, path: table.parquet, columns: {query_id: id, prompt: question, cost: usd}}\n"
        f"encoder: {{name: tfidf-svd}}\noracle: {{kind: ridge}}\nreplay: "
        f"{{trials: 3, rhos: {list(w.rhos)}}}\n"
        f"policies: [best_single, {', '.join(ROUTERS)}]\n{extra}",
        encoding="utf-8",
    )
    return load_pool_file(folder / f"table_{w.seed}.yaml"), kinds


class Replays(Evidence):
    """The evidence of a report, of replays in memory."""

    results: dict[tuple[str, float], ReplayResult]

    @property
    def from_rounds(self) -> bool:
        return True

    def trace(self, policy: str, rho: float) -> Any:
        return self.results[policy, rho]


@dataclass(frozen=True)
class Judged:
    """What was said of a table, and whether it is true.

    Attributes:
        refused: the error, or ''. verdicts: (rho, decision, true gain, wrong). promise: (made, kept).
        messages: all that was said, (heading, text) each.
    """

    world: World
    refused: str
    verdicts: tuple[tuple[float, str, float, bool], ...]
    promise: tuple[bool, bool]
    messages: tuple[tuple[str, str], ...]
    seconds: float


def judge(seed: int, most: int = 20_000) -> Judged:
    """One table, from the file to the verdict."""
    start, w = time.process_time(), world(seed, most)
    with tempfile.TemporaryDirectory() as folder:
        pool_file, kinds = write_table(w, Path(folder))
        try:
            seen = overview(pool_file)
        except CabsError as error:
            return Judged(
                w,
                str(error),
                (),
                (False, True),
                (("pool add", str(error)),),
                time.process_time() - start,
            )
    table, pool = seen.outcomes, pool_file.pool
    split = split_under(table, pool.split)
    train = [p for p, s in zip(table.prompts, split, strict=True) if s == "train"]
    x, _ = TfidfEncoder(train).encode(table.prompts)
    oracles = train_oracles(x, table, split, pool.oracle, features=pool.features)
    problems = build_problems(table, split, x, oracles, pool)
    test = problems["test"]
    results = {
        (policy, rho): replay(test, policy, rho, pool.replay.trials, threads=1)
        for policy in pool.policies
        for rho in w.rhos
    }
    evidence = Replays(test, dict.fromkeys(results, Path()), {})
    object.__setattr__(evidence, "results", results)
    truth = Truth(w, kinds[table.query_ids.astype(int)[split == "test"]], test.arms)
    messages, verdicts = [("pool add", seen.text.replace(f"{pool_file.path.parent}/", ""))], []
    for rho in w.rhos:
        best = max(ROUTERS, key=lambda policy: evidence.played(policy).mean("utility")[w.rhos.index(rho)])
        verdict = verdict_at(evidence, best, rho, len(ROUTERS))
        gains = {p: truth.gain(results[p, rho], verdict.model, rho) for p in ROUTERS}
        verdicts.append((rho, verdict.decision, gains[verdict.router][0], wrong(verdict, gains)))
        messages += [("verdict, row of the table", " | ".join(cards.use_row(verdict)))]
    best_model = int(test.offline_scores.mean(axis=0).argmax())
    answer = goal_answer(
        Goal(quality=QUALITY, of=test.arms[best_model]),
        _scored(test, best_model),
        routers=[_decisions(results["ridge", rho], test.K) for rho in w.rhos],
    )
    return Judged(
        w,
        "",
        tuple(verdicts),
        truth.promise(answer, test.arms[best_model], {rho: results["ridge", rho] for rho in w.rhos}),
        tuple(messages),
        time.process_time() - start,
    )


def wrong(verdict: Verdict, gains: dict[str, tuple[float, float, float]]) -> bool:
    """Whether a decision contradicts the truth."""
    gain, quality, saved = gains[verdict.router]
    if verdict.decision == "deploy":
        return gain <= 0 and not (quality >= -MATTERS and saved >= SAVES)
    return verdict.decision == "keep" and max(g for g, _, _ in gains.values()) > LOST


class Truth:
    """Expected utility, score and cost of every model on every kind of prompt, and how much each test prompt
    stands for."""

    def __init__(self, w: World, kinds: np.ndarray, arms: list[str]) -> None:
        rng = np.random.default_rng([w.seed, 2])
        every = np.arange(len(w.frequency))
        self.score, self.cost, _ = w.drawn(rng, np.repeat(every, DRAWS))
        self.cells = len(every)
        self.kinds = kinds
        place = [int(arm.removeprefix("model_")) for arm in arms]
        self.score, self.cost = self.score[:, place], self.cost[:, place]
        counts = np.bincount(kinds, minlength=len(every))
        self.weight = (w.frequency / np.maximum(counts, 1))[kinds]
        self.weight /= self.weight.mean()
        self.arms = arms

    def _means(self, values: np.ndarray) -> np.ndarray:
        means: np.ndarray = values.reshape(self.cells, DRAWS, -1).mean(axis=1)[self.kinds]
        return means

    def gain(self, result: ReplayResult, model: str, rho: float) -> tuple[float, float, float]:
        """(utility, quality: router minus model; share of the model's cost saved) in truth."""
        j = self.arms.index(model)
        values = [
            self._means(v) for v in (clipped_utility(self.score, self.cost, rho), self.score, self.cost)
        ]
        weight = self.weight[result.order]
        routed = [float((weight * v[result.order, result.actions]).mean()) for v in values]
        fixed = [float((self.weight * v[:, j]).mean()) for v in values]
        return routed[0] - fixed[0], routed[1] - fixed[1], 1 - routed[2] / fixed[2]

    def promise(self, answer: GoalFound, best: str, routed: dict[float, ReplayResult]) -> tuple[bool, bool]:
        """(the goal is confirmed, the quality of its option is then at least what was asked for).

        Args:
            best: the model that the quality is a share of. routed: {rho: replay of ridge}.
        """
        score = self._means(self.score)
        if answer.rung == ROUTER:
            result = routed[answer.use]
            got = score[result.order, result.actions]
            weight = self.weight[result.order]
        else:
            got = score[:, self.arms.index(answer.choice)]
            weight = self.weight
        asked = float((self.weight * score[:, self.arms.index(best)]).mean())
        return answer.confirmed, float((weight * got).mean()) >= QUALITY * asked


def _scored(problem: ReplayProblem, today: int) -> ScoredTable:
    """Return the real answers of a problem as the table that a goal is answered from."""
    scores = problem.scores.astype(float)
    if problem.observed is not None:
        scores = np.where(problem.observed > 0, scores, np.nan)
    clusters = np.arange(problem.n) if problem.clusters is None else problem.clusters
    tasks = np.full(problem.n, "all")
    return ScoredTable(tuple(problem.arms), scores, problem.costs.astype(float), tasks, clusters, today)


def _decisions(result: ReplayResult, models: int) -> Decisions:
    """Return the shares with which a router asked the models for each query; its `use` is rho."""
    weights = np.zeros((result.order.shape[1], models))
    np.add.at(weights, (result.order.ravel(), result.actions.ravel()), 1.0 / len(result.order))
    return Decisions(f"ridge at rho {result.rho:g}", weights, use=result.rho)


def summary(rows: list[Judged]) -> dict[str, Any]:
    """Figures of all tables."""
    verdicts = [v for row in rows for v in row.verdicts]
    made = [row.promise for row in rows if row.promise[0]]
    bad, broken = sum(v[3] for v in verdicts), sum(not kept for _, kept in made)
    refused = sum(bool(row.refused) for row in rows)
    return {
        "tables": len(rows),
        "refused": refused,
        "verdicts": len(verdicts),
        "wrong": bad,
        "wrong share": bad / max(len(verdicts), 1),
        "wrong at most (95 %)": float(binomtest(bad, max(len(verdicts), 1)).proportion_ci().high),
        "decisions": {d: sum(v[1] == d for v in verdicts) for d in ("deploy", "keep", "unsure")},
        "promises": len(made),
        "kept share": 1 - broken / max(len(made), 1),
        "processor seconds": sum(row.seconds for row in rows),
    }
