"""Figures that users of the library and the stages make from replays.

`plot_frontier` and `plot_regret` are public. `utility_plot` is drawn for every partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.uncertainty import crossed_error
from cabs_core.evaluation.metrics.frontier import non_decreasing_hull
from cabs_core.report.plots.charts import bars, lines
from cabs_core.report.plots.figure import Figure, FigureTable
from cabs_core.report.plots.theme import Style, default_styles

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.result import ReplayResult

#: most points of a line, since more cannot be seen
_POINTS = 200


def plot_frontier(table: pd.DataFrame, *, title: str = "Quality against cost") -> Figure:
    """Figure of mean score against mean cost of every policy over its rhos.

    Lines show the scores that mixtures of a policy's settings reach.

    Args:
        table: columns policy, cost (USD a query) and score, such as `replay_many` returns.

    Returns:
        A figure; `figure.save("frontier.svg")` writes it (also .png and .pdf), `figure.chart` is the Altair
        chart.

    Raises:
        DataError: a column is missing, or the table is empty.

    Examples:
        >>> import pandas as pd
        >>> from cabs_core import plot_frontier
        >>> table = pd.DataFrame({"policy": ["a", "a"], "cost": [1e-4, 1e-3], "score": [0.5, 0.7]})
        >>> plot_frontier(table).svg[:4]
        b'<svg'
    """
    missing = [name for name in ("policy", "cost", "score") if name not in table]
    if missing or not len(table):
        raise DataError(
            f"plot_frontier: expected rows with policy, cost and score; missing are {missing or 'the rows'}"
        )
    names = list(dict.fromkeys(table["policy"]))
    styles = default_styles(names)
    hulls = []
    for name, rows in table.groupby("policy", sort=False):
        x, y = non_decreasing_hull(rows["cost"], rows["score"])
        hulls.append(pd.DataFrame({"policy": name, "cost": x, "score": y}))
    log = bool((table["cost"] > 0).all())
    scale = alt.Scale(type="log" if log else "linear", nice=False, zero=False)
    x_axis = alt.X("cost:Q", title="mean cost of a query, USD", scale=scale)
    y_axis = alt.Y("score:Q", title="mean score", scale=alt.Scale(zero=False))
    tokens = alt.Scale(domain=names, range=[styles[name].token for name in names])
    shapes = alt.Scale(domain=names, range=[styles[name].shape for name in names])
    colour = alt.Color("policy:N", title=None, scale=tokens)
    drawn = alt.layer(
        alt.Chart(pd.concat(hulls)).mark_line(strokeWidth=1.5).encode(x=x_axis, y=y_axis, color=colour),
        alt.Chart(table[["policy", "cost", "score"]])
        .mark_point(filled=True, size=60, opacity=1)
        .encode(x=x_axis, y=y_axis, color=colour, shape=alt.Shape("policy:N", title=None, scale=shapes)),
    ).properties(height=360)
    rows = [
        [str(p), f"{c:.3g}", f"{s:.4f}"] for p, c, s in table[["policy", "cost", "score"]].values.tolist()
    ]
    return Figure("frontier", title, "", "", drawn, FigureTable(["policy", "cost", "score"], rows))


def plot_regret(
    results: Sequence[ReplayResult] | Mapping[str, ReplayResult], *, title: str = "Cumulative regret"
) -> Figure:
    """Figure of cumulative regret against the best arm of every query, as a mean over trials.

    Its 95 % bands allow for chance in both the trials and the queries.

    Args:
        results: results of `replay`, one a policy, on one problem at one rho; as a mapping, {label: result}.

    Returns:
        A figure, as `plot_frontier` does.

    Raises:
        DataError: there are no results, or two have one name.

    Examples:
        >>> from cabs_core import plot_regret, synthetic_problem
        >>> from cabs_core.evaluation.replay import replay
        >>> problem = synthetic_problem(n=100, K=3, d=4)
        >>> figure = plot_regret([replay(problem, name, trials=2) for name in ("random", "lin_ucb")])
        >>> figure.svg[:4]
        b'<svg'
    """
    if isinstance(results, Mapping):
        named = dict(results)
    else:
        named = {result.policy: result for result in results}
    if not named or len(named) != len(results):
        raise DataError("plot_regret: expected results of different names; give a mapping {label: result}")
    frames = []
    rows = []
    for name, result in named.items():
        losses = result.best_rewards - result.rewards
        regret = losses.cumsum(axis=1)
        rounds = np.unique(np.linspace(0, regret.shape[1] - 1, min(regret.shape[1], _POINTS)).astype(int))
        mean = regret.mean(axis=0)[rounds]
        frame = pd.DataFrame({"series": name, "x": rounds + 1.0, "y": mean})
        margin = np.array(
            [
                n * crossed_error(result.order[:, :n], losses[:, :n], result.clusters).half_width()
                for n in (rounds + 1).tolist()
            ]
        )
        margin[np.isnan(margin)] = 0.0  # a single round has no error
        frame["low"] = mean - margin
        frame["high"] = mean + margin
        frames.append(frame)
        rows.append([name, f"{mean[-1]:.2f}"])
    chart = lines(
        pd.concat(frames, ignore_index=True),
        default_styles(list(named)),
        x_title="round",
        y_title="cumulative regret",
        y_zero=True,
    )
    return Figure("regret", title, "", "", chart, FigureTable(["policy", "regret at the end"], rows))


def utility_plot(rows: list[dict[str, Any]], title: str) -> bytes:
    """Draw the utility of every policy with its 95 % interval over trials and queries, as SVG.

    It is drawn for every partition. A PNG would take three times as long and six times as many bytes.

    Args:
        rows: {"policy", "utility", "margin": half of the interval} of each policy, the best first.
    """
    frame = pd.DataFrame(
        {
            "name": [row["policy"] for row in rows],
            "value": [row["utility"] for row in rows],
            "low": [row["utility"] - row["margin"] for row in rows],
            "high": [row["utility"] + row["margin"] for row in rows],
            "text": [f"{row['utility']:.4f}" for row in rows],
            "style": [Style(0)] * len(rows),
        }
    )
    return Figure(
        "utility", title, "", "", bars(frame, x_title="utility"), FigureTable([], []), width=480
    ).svg
