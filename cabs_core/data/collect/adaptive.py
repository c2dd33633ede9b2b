"""Strategy `adaptive`: score what was asked so far, and say whether more would change the verdict, and which
model is to be asked how often."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from cabs_core.data.collect.plan import Collection
from cabs_core.data.collect.scoring import Cell, score_cells
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.verdict import keep_text, look, shares_of

#: least number of scored answers of every model that a verdict is looked for with
_FEWEST = 10


def cells_asked(
    collection: Collection, store: AnswerStore, asked: np.ndarray
) -> tuple[list[Cell], np.ndarray]:
    """(cells of the first prompts of the order where `asked`, bool `[n, K]`, prompt by prompt; costs `[n, K]`
    in USD, nan elsewhere)."""
    prompts, cells = collection.prompts, []
    costs = np.full(asked.shape, np.nan)
    for row, i in enumerate(collection.order[: len(asked)].tolist()):
        calls = {j: collection.call(collection.models[j], i) for j in np.flatnonzero(asked[row]).tolist()}
        answers = store.get([call.key for call in calls.values()])
        for column, call in calls.items():
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
    collection: Collection, store: AnswerStore, notify: Callable[[str], None], fewest: int = 0
) -> Callable[[np.ndarray], tuple[str, np.ndarray, dict[str, Any]]]:
    """What `collect_answers` calls after each part: (why to stop or '', probabilities `[K]` of asking each
    model the next prompts, figures of the look).

    Judges are asked as part of it: their answers are kept, and the stage `scores` pays for none of them
    again. A model that a judge compares others with is asked every prompt.

    Args:
        fewest: prompts that the stages after it need: what is decided before is looked at again.
    """
    names, rho = [t.name for t in collection.models], collection.pool_file.pool.router_rho
    tuned = 2 * collection.collect.first
    always = [names.index(j.against) for j in collection.collect.judges if j.against is not None]

    def examine(observed: np.ndarray) -> tuple[str, np.ndarray, dict[str, Any]]:
        last, asked = len(observed), observed > 0
        cells, costs = cells_asked(collection, store, asked)
        scored, scores = score_cells(collection, cells, store, notify), np.full(asked.shape, np.nan)
        scores[asked] = scored.score
        full = ~(np.isnan(scores) & asked).any(axis=1)
        if full.sum() < collection.collect.first / 2 or asked[full].sum(axis=0).min() < _FEWEST:
            nothing = {"decision": "unsure", "difference": None, "low": None, "high": None}
            return "", np.ones(len(names)), nothing
        texts = [collection.prompts.texts[i] for i in collection.order[:last][full].tolist()]
        verdict = look(
            texts,
            names,
            scores[full],
            costs[full],
            observed[full],
            rho,
            tuned=tuned,
            seed=collection.collect.seed,
        )
        shares = shares_of(np.array(verdict.matters), np.nanmean(costs, axis=0) + scored.paid / len(cells))
        shares[always] = 1.0
        figures = {k: v for k, v in asdict(verdict).items() if k not in ("n", "model", "matters")} | {
            "best model": verdict.model,
            "rho": rho,
            "asked": {name: float(p) for name, p in zip(names, asked.mean(axis=0), strict=True)},
        }
        interval = f"{verdict.difference:+.4f} ({verdict.low:+.4f} to {verdict.high:+.4f})"
        gap = f"after {last:,} prompts: router minus {verdict.model} {interval}"
        notify(f"{gap}: {verdict.decision}")
        if verdict.rising:
            notify(
                "no router gains enough yet, but the last half of the prompts gained "
                f"{verdict.rising:+.4f}: it goes on"
            )
        if verdict.decision == "unsure":
            return "", shares, figures
        if last < min(fewest, len(collection.order)):
            notify(f"it goes on: {fewest:,} prompts are the fewest to split into train, validation and test")
            return "", shares, figures
        why = verdict.decision if verdict.decision == "deploy" else f"keep, for {keep_text(int(full.sum()))}"
        return f"the verdict is decided {gap}: {why}", shares, figures

    return examine
