"""Strategy `adaptive`: score what was asked so far, and say whether more would change the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cabs_core.data.collect.calls import AskedModel
from cabs_core.data.collect.plan import Collection
from cabs_core.data.collect.scoring import Cell, score_cells
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.verdict import idle, keep_text, look
from cabs_core.data.pool_files import ModelPool


def rho_of(pool: ModelPool) -> float:
    """The cost sensitivity at which the verdict is sought: the router's, else the middle one."""
    if pool.router.rho is not None:
        return float(pool.router.rho)
    rhos = sorted(pool.replay.rhos)
    return float(rhos[len(rhos) // 2])


def cells_asked(
    collection: Collection, store: AnswerStore, models: Sequence[AskedModel], last: int
) -> tuple[list[Cell], np.ndarray]:
    """(cells of the first `last` prompts of the order, prompt by prompt; costs `[last, K]`)."""
    prompts, cells = collection.prompts, []
    costs = np.empty((last, len(models)))
    for row, i in enumerate(collection.order[:last].tolist()):
        calls = [collection.call(target, i) for target in models]
        answers = store.get([call.key for call in calls])
        for column, call in enumerate(calls):
            answer = answers[call.key]
            costs[row, column] = call.target.cost_of(answer)
            cells.append(
                Cell(
                    prompts.ids[i],
                    prompts.texts[i],
                    prompts.tasks[i],
                    prompts.rows[i],
                    call.target.name,
                    answer.state,
                    answer.text,
                )
            )
    return cells, costs


def looking(
    collection: Collection, store: AnswerStore, notify: Callable[[str], None]
) -> Callable[[int, Sequence[AskedModel]], tuple[str, dict[str, str], dict[str, Any]]]:
    """What `collect_answers` calls after each part: (why to stop or '', {model to drop: why}, figures of the
    look).

    Judges are asked as part of it: their answers are kept, and the stage `scores` pays for none of them
    again.
    """
    pool = collection.pool_file.pool
    rho, tuned = rho_of(pool), 2 * collection.collect.sample

    def examine(last: int, models: Sequence[AskedModel]) -> tuple[str, dict[str, str], dict[str, Any]]:
        cells, costs = cells_asked(collection, store, models, last)
        scores = score_cells(collection, cells, store, notify).score.reshape(last, len(models))
        full = ~np.isnan(scores).any(axis=1)
        if full.sum() < collection.collect.sample / 2:
            return "", {}, {"decision": "unsure", "difference": None, "low": None, "high": None}
        texts = [collection.prompts.texts[i] for i in collection.order[:last][full].tolist()]
        names = [t.name for t in models]
        verdict = look(
            texts, names, scores[full], costs[full], rho, tuned=tuned, seed=collection.collect.seed
        )
        figures = {k: v for k, v in asdict(verdict).items() if k not in ("n", "model")} | {
            "best model": verdict.model,
            "rho": rho,
        }
        interval = f"{verdict.difference:+.4f} ({verdict.low:+.4f} to {verdict.high:+.4f})"
        gap = f"after {last:,} prompts: router minus {verdict.model} {interval}"
        notify(f"{gap}: {verdict.decision}")
        if verdict.rising:
            notify(
                "no router gains enough yet, but the last half of the prompts gained "
                f"{verdict.rising:+.4f}: it goes on"
            )
        if verdict.decision != "unsure":
            why = (
                verdict.decision
                if verdict.decision == "deploy"
                else f"keep, for {keep_text(int(full.sum()))}"
            )
            return f"the verdict is decided {gap}: {why}", {}, figures
        return "", idle(names, scores[full], costs[full], rho), figures

    return examine
