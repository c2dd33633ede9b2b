"""Lines of regret over the rounds, and the figure of a stream in which something changes."""

from collections.abc import Collection, Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd

from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.catalog.roles import BEST_SINGLE, NO_ROUTERS, ORACLE_BEST, RANDOM
from cabs_core.base.statistics.uncertainty import half_width
from cabs_core.report.data import LEVELS, PoolData
from cabs_core.report.evidence import Evidence
from cabs_core.report.names import LEVEL_NAMES, condition_text, label, policies_shown_first, style
from cabs_core.report.plots.charts import lines
from cabs_core.report.plots.figure import Figure, FigureTable, ViewChoice
from cabs_core.report.plots.theme import Style


def regret_lines(
    data: PoolData, column: str, points: int, left_out: Collection[str], **columns: str
) -> dict[tuple[str, str], pd.DataFrame]:
    """Read a column of `mart_regret_curves` as lines of a chart, with two-sided 95 % intervals over trials.

    Args:
        column: the column that is y. `COLUMN_se` is its standard error. If the error is unknown, as with one
            trial, low and high are y.
        points: most points of a line.
        left_out: policies without a line.
        columns: {further column of the chart's data: its value in all rows}.

    Returns:
        {(policy, regime): frame with the columns series, x, y, low, high and level}.
    """
    curves = data.mart("regret_curves")
    curves = curves[curves[column].notna() & ~curves["policy"].isin(left_out)]
    levels = [level for level in dict.fromkeys(("overall", *LEVELS)) if (curves["regime"] == level).any()]
    curve_of = dict(list(curves.sort_values("round").groupby(["policy", "regime"], observed=True)))
    found = {}
    for policy, level in product(data.board.index, levels):
        curve = curve_of.get((policy, level))
        if curve is None:
            continue
        curve = curve.iloc[np.unique(np.linspace(0, len(curve) - 1, points).astype(int))]
        value = curve[column]
        margin = np.nan_to_num(half_width(curve[f"{column}_se"], curve["trials"]))
        line = {"series": label(policy), "x": curve["round"].astype(float), "y": value}
        line |= {"low": value - margin, "high": value + margin, "level": level}
        found[str(policy), level] = pd.DataFrame(line | columns)
    return found


def level_choice(levels: Iterable[str]) -> ViewChoice:
    """Return a view's choice between cost regimes (`levels`). The first regime is shown at first."""
    names = list(dict.fromkeys(levels))
    return ViewChoice("level", "Cost regime", tuple((level, LEVEL_NAMES[level]) for level in names), names[0])


def legend_of(
    policies: Sequence[str], shown: Collection[str]
) -> tuple[dict[str, Style], tuple[tuple[str, Style, bool], ...]]:
    """Return the styles and the legend of policies.

    Args:
        shown: policies that are drawn at first.

    Returns:
        ({label: style}, (label, style, True if drawn at first) of every policy).
    """
    styles = {label(p): style(p) for p in policies}
    return styles, tuple((label(p), styles[label(p)], p in shown) for p in policies)


def recovery(data: PoolData, evidence: Evidence | None) -> Figure | None:
    """Figure of the rolling regret by round.

    Return None if no model changes and the pool has no stress condition of the stream (`sessions` counts as
    none), or if the marts hold no rolling regret.

    Args:
        evidence: replays, whose problem says when models change. If it is None, the chart does not mark this
            round.
    """
    later = data.settings.get("later_models") or {}
    condition = str(data.info["condition"])
    if not later and (condition not in STREAM_CONDITIONS or condition == "sessions"):
        return None  # conversations change nothing along the stream
    curves = regret_lines(data, "recent_regret", 30, (ORACLE_BEST, RANDOM))
    if not curves:
        return None
    rounds = int(data.mart("regret_curves")["round"].max())
    marks = _changes(condition, bool(later), rounds, evidence)
    rows = []
    for (policy, level), curve in curves.items():
        rows.append([label(policy), LEVEL_NAMES[level], *_figures(curve, marks)])
    order = list(dict.fromkeys(policy for policy, _ in curves))
    by_regime = level_choice(level for _, level in curves)
    static = [p for p in order if data.board.loc[p, "kind"] == "static" and p not in NO_ROUTERS]
    shown = policies_shown_first(order, data.best, data.reference) | {
        *static[:1],
        *({BEST_SINGLE} & set(order)),
    }
    change = _change_text(later, condition)
    styles, legend = legend_of(order, shown)
    window = int(min(curve["x"].iloc[0] for curve in curves.values()))
    best = ""
    row = next((row for row in rows if row[0] == label(data.best)), None)
    if row is not None:
        best = f" {row[0]}: {row[2]} before, {row[3]} at its highest after, {row[4]} at the end."
    return Figure(
        key="recovery",
        title="Regret along the stream",
        caption=f"Mean regret of a round over the {window} rounds before, with two-sided 95 % intervals over "
        f"trials; lower is better. {change} Where a line falls again after the change, the policy recovers; "
        "one that learns nothing online does not.",
        alt=f"Lines of rolling regret by round for {len(order)} policies. {change}{best}",
        chart=lines(
            pd.concat(curves.values()),
            styles,
            x_title="round (queries routed)",
            y_title="regret of a round (utility)",
            shown={label(p) for p in shown},
            choices=[("level", by_regime.first)],
            marks=marks,
            y_zero=True,
        ),
        table=FigureTable(
            ["Policy", "Regime", "Before the change", "Highest after", "At the end (95 %)"], rows
        ),
        choices=(by_regime,),
        legend=legend,
    )


def _changes(condition: str, models: bool, rounds: int, evidence: Evidence | None) -> list[tuple[float, str]]:
    """Return (round, text) of the marks in the chart, the changes of models first.

    Models change where the times of the queries change; without `evidence` they have no mark. The middle
    round is marked if models arrive or disappear, and as `half of the drift` if the mix of tasks drifts.
    Other conditions have no mark.

    Args:
        models: True if models change under their names.
        rounds: number of rounds of the stream.
    """
    marks = []
    if models and evidence is not None and evidence.problem.times is not None:
        times = np.sort(evidence.problem.times)
        marks = [(float(i + 1), "models change") for i in np.flatnonzero(np.diff(times)) if i + 1 < rounds]
    texts = {
        "arms_arrive": "models arrive",
        "arms_disappear": "models disappear",
        "drift": "half of the drift",
    }
    if condition in texts:
        marks.append((float(rounds // 2), texts[condition]))
    return marks


def _figures(line: pd.DataFrame, marks: list[tuple[float, str]]) -> list[str]:
    """Return texts: the regret before the first change, the highest one after it, the last with its interval.

    Without changes, the first point stands for the regret before. A dash stands for a regret without points.

    Args:
        line: points of a policy, by round.
        marks: (round, text) of the changes.
    """
    last = line.iloc[-1]
    end = f"{last['y']:.3f} ({last['low']:.3f} to {last['high']:.3f})"
    if marks:
        before = line[line["x"] <= marks[0][0]]
    else:
        before = line.iloc[:1]
    if marks:
        after = line[line["x"] > marks[0][0]]
    else:
        after = line.iloc[1:]
    return [
        f"{before['y'].iloc[-1]:.3f}" if len(before) else "–",
        f"{after['y'].max():.3f}" if len(after) else "–",
        end,
    ]


def _change_text(later: dict[str, str], condition: str) -> str:
    """Return sentences on what changes along the stream.

    Args:
        later: {model: version that answers in the second half}.
        condition: the stress condition.
    """
    sentences = []
    if later:
        sentences.append(
            "In the middle of the stream models change under their names: "
            + ", ".join(f"{name} becomes {version}" for name, version in later.items())
            + "; nothing tells the routers."
        )
    if condition in STREAM_CONDITIONS:
        sentences.append(f"{condition_text(condition)}.")
    return " ".join(sentences)
