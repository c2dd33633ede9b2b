"""Tables of a pool's page that are made from single rounds. Every public function makes one table."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.units import money
from cabs_core.report import evidence as facts
from cabs_core.report.evidence import Evidence
from cabs_core.report.names import label
from cabs_core.report.tables import PageTable, TableCell, number, percent, table_of, words

#: most rows of the table of tasks
_MOST_TASKS = 60


def budgets(evidence: Evidence, router: str) -> PageTable | None:
    """Table of the best rho of a router, and of the best model, that each of eight budgets pays for.

    The budgets are spaced evenly in the logarithm, from the smallest mean cost to the largest. The result is
    None if a model or the router at a rho costs nothing on average, or if all cost the same.
    """
    points = facts.frontier_points(evidence, router)
    models = facts.single_models(evidence)
    dear = float(max(models["cost"].max(), points["cost"].max()))
    cheap = float(min(models["cost"].min(), points["cost"].min()))
    if not dear > cheap > 0:
        return None

    def best(within: pd.DataFrame, budget: float) -> pd.Series:
        """Return the row with the highest score that the budget pays for; an empty row if there is none."""
        rows = within[within["cost"] <= budget * 1.0001]
        if rows.empty:
            return pd.Series(dtype=object)
        return rows.loc[rows["score"].idxmax()]

    def dollars(row: pd.Series) -> TableCell:
        """Cell with the cost of a row; an en dash for an empty row."""
        return TableCell(money(row["cost"]) if len(row) else "–")

    records = [(b, best(points, b), best(models, b)) for b in np.geomspace(cheap, dear, 8)]
    columns: dict[str, Callable[[Any], TableCell]] = {
        "USD per 1,000 requests": lambda r: TableCell(money(r[0]), r[0]),
        "Quality of the router": lambda r: percent(r[1].get("score")),
        "The router spends": lambda r: dollars(r[1]),
        "Best model within it": lambda r: words(r[2].get("model", "none")),
        "Its quality": lambda r: percent(r[2].get("score")),
        "The model spends": lambda r: dollars(r[2]),
    }
    return table_of(
        "budgets",
        f"What a budget buys with {label(router)}, and with one model",
        records,
        columns,
        "On the held-out queries, at the settings that were tried; chosen on the same queries, so "
        "differences of a point or two mean little.",
    )


def tasks(evidence: Evidence, router: str, rho: float) -> PageTable | None:
    """Table of the models that a router asks at one rho (score per USD), for the 60 most frequent tasks.

    The result is None if no round was played.
    """
    rows = facts.routing_by_task(evidence, router, rho).head(_MOST_TASKS)
    columns = {
        "Task": lambda t: words(t.task),
        "Queries": lambda t: number(t.queries, 0),
        "Mean score": lambda t: percent(t.score, 1),
        "USD per 1,000": lambda t: number(t.cost, 3, prefix="$"),
        "Mostly asked": lambda t: words(t.model),
        "Share": lambda t: percent(t.share),
        "Best model in hindsight": lambda t: words(t.best_model),
        "Its score": lambda t: percent(t.best_score, 1),
    }
    return table_of(
        "tasks",
        f"Where {label(router)} sends each task at ρ = {rho:g}",
        rows.itertuples(),
        columns,
        "All rounds of all trials. Best model in hindsight: the highest mean score on these very queries, "
        "whatever it costs."
        + (f" The {_MOST_TASKS} most frequent tasks." if len(rows) == _MOST_TASKS else ""),
    )


def propensities(evidence: Evidence) -> PageTable | None:
    """Table of the smallest propensity of each policy, and of the share of rounds below 0.01."""
    columns = {
        "Policy": lambda p: words(label(p.policy)),
        "Smallest": lambda p: TableCell(f"{p.smallest:.2g}", p.smallest),
        "Rounds below 0.01": lambda p: percent(p.share_below, 2),
    }
    return table_of(
        "propensities",
        "Smallest propensity",
        facts.smallest_propensities(evidence).itertuples(),
        columns,
        "The probability with which a policy asked the model that it asked, over all rounds, trials and ρ. "
        "Estimates from logs divide by it: where it is tiny they are noisy, where it is always 1 nothing "
        "about other models can be learnt from the log.",
    )
