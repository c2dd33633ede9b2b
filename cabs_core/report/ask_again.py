"""Prompts of a log that every model should answer, because the log alone cannot tell.

The page of a log links to the file with these prompts, which `cabs collect` can read.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import counted, round_up
from cabs_core.base.units import money
from cabs_core.evaluation.answer import LoggedTable, Word
from cabs_core.report.pool_answer import PoolAnswer

#: name of the file beside the page that has a prompt in every line
ASK_AGAIN = "ask_again.jsonl"
#: wanted chance to show that an option as good as today's loses less than the tolerance
_CHANCE = 0.8
#: assumed share of the variance of a score that answers of two models to one prompt have in common
_COMMON = 0.5


@dataclass(frozen=True)
class AskAgain:
    """Prompts that every model should answer.

    Attributes:
        rows: `[m]` indices of the prompts in the log.
        by_task: {task: number of prompts}.
        usd: expected cost in USD of the answers of all models, from the log's mean cost of each model.
    """

    rows: np.ndarray
    by_task: dict[str, int]
    usd: float

    @property
    def text(self) -> str:
        """Sentences that say how many prompts of which tasks to ask, at which cost, and how."""
        tasks = ""
        if len(self.by_task) > 1:
            listed = ", ".join(f"{task} {number:,}" for task, number in self.by_task.items())
            tasks = f" ({listed})"
        return (
            f"To know, have {counted(len(self.rows), 'prompt')} of the log{tasks} answered again by every "
            f"model, which costs about {money(self.usd)} by the log's mean costs. {ASK_AGAIN} beside this "
            "page lists them; a pool file with source: {kind: collect, path: "
            f"{ASK_AGAIN}}} and a section collect asks them (docs/no-scores.md)."
        )


def prompts_to_ask(found: PoolAnswer) -> AskAgain | None:
    """Choose the prompts that every model should answer.

    Clusters are drawn at random, and the first prompt of each one is taken. Each task gets its share of the
    prompts, but at least as many as a task needs for a row of its own, if it has so many clusters.

    Returns:
        None if an option is recommended instead of today's choices, or if no option has the word "cannot
        tell".
    """
    table = found.scored
    assert isinstance(table, LoggedTable)
    answer = found.answer
    open_rungs = [rung for rung in answer.rungs if rung.word == Word.UNKNOWN]
    if not open_rungs or answer.recommended not in (None, "keep"):
        return None
    first_of_cluster = np.unique(table.clusters, return_index=True)[1]
    rng = np.random.default_rng(found.options.seed)
    drawn = rng.permutation(first_of_cluster)
    wanted = min(_prompts_needed(found, table), len(drawn))
    tasks = table.tasks.astype(str)
    chosen = []
    by_task = {}
    names, counts = np.unique(tasks[drawn], return_counts=True)
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        share = math.ceil(wanted * count / len(drawn))
        number = min(max(share, found.options.smallest_task), count)
        chosen.append(drawn[tasks[drawn] == name][:number])
        by_task[name] = number
    rows = np.sort(np.concatenate(chosen))
    data = table.data
    paid = [float(data.costs[data.actions == k].mean()) for k in np.unique(data.actions)]
    return AskAgain(rows, by_task, len(rows) * sum(paid))


def _prompts_needed(found: PoolAnswer, table: LoggedTable) -> int:
    """Return the number of prompts that, with chance `_CHANCE`, show an equally good model to be as good.

    Shown is that the model loses less than the tolerance. The number is rounded up and at least the
    `smallest_task` of the answer's options.
    """
    options = found.options
    tail = options.level / 2 / max(len(table.models) - 1, 1)
    reach = -float(special.ndtri(tail)) + float(special.ndtri(_CHANCE))
    # the variance of a difference between two answers to one prompt
    variance = 2.0 * (1.0 - _COMMON) * float(table.data.scores.var())
    return round_up(max(math.ceil(variance * (reach / options.tolerance) ** 2), options.smallest_task))


def write_prompts(chosen: AskAgain, found: PoolAnswer, folder: Path) -> Path:
    """Write the prompts with their tasks to the file `ASK_AGAIN` of a folder, one JSON object a line.

    Return the path of the file.
    """
    outcomes = found.outcomes
    lines = [
        json.dumps({"prompt": outcomes.prompts[row], "task": str(outcomes.tasks[row])}, ensure_ascii=False)
        for row in chosen.rows.tolist()
    ]
    return write_text(folder / ASK_AGAIN, "\n".join(lines) + "\n")
