"""Figures of the profile page, one function each."""

import altair as alt
import numpy as np
import pandas as pd

from cabs_core.base.statistics.uncertainty import mean_error, score_interval
from cabs_core.data.outcomes import Outcomes
from cabs_core.evaluation.metrics.frontier import pareto_mask
from cabs_core.report.plots.charts import NARROW, heatmap, lines, points, short
from cabs_core.report.plots.figure import Figure, FigureTable
from cabs_core.report.plots.theme import default_styles
from cabs_core.report.tables import signed_text


def headroom(rhos: tuple[float, ...], gain: dict[str, np.ndarray], arms: list[str]) -> Figure:
    """Figure of the mean utility by rho of perfect routing, of the best single model and of random play.

    Args:
        rhos: the R values of rho.
        gain: {"oracle", "single", "random": `[R]` mean utility of perfect routing, of the best single model
            and of random play, "which": `[R]` index of the best single model}.
        arms: names of the models.
    """
    series = {"best per query": gain["oracle"], "best single": gain["single"], "random": gain["random"]}
    wide = pd.DataFrame(series).assign(x=np.array(rhos, dtype=float))
    frame = wide.melt("x", var_name="series", value_name="y")
    styles = default_styles(list(series))
    rows = []
    for r, rho in enumerate(rhos):
        means = [values[r] for values in series.values()]
        lead = gain["oracle"][r] - gain["single"][r]
        best_single = arms[gain["which"][r]]
        rows.append([f"{rho:g}", *(f"{mean:.3f}" for mean in means), best_single, signed_text(lead)])
    return Figure(
        key="headroom",
        title="Mean utility of no routing and of perfect routing",
        caption="1/ρ is the dollar value of one right answer; at ρ = 0 cost does not count.",
        alt="Mean utility by ρ: "
        + "; ".join(f"{n} from {v[0]:.3f} to {v[-1]:.3f}" for n, v in series.items())
        + ".",
        chart=lines(
            frame,
            styles,
            x_title="cost sensitivity ρ (1/USD)",
            y_title="mean utility",
            symbols=0,
            y_zero=True,
            height=330,
        ),
        table=FigureTable(["ρ", *series, "the best single model", "headroom"], rows),
        legend=tuple((name, style, True) for name, style in styles.items()),
    )


def costs(o: Outcomes) -> Figure:
    """Figure of the mean score, with its interval, against the mean cost of every model.

    Models are dark if no cheaper model scores as well.
    """
    cost = 1000 * o.costs.mean(axis=0)
    score = o.scores.mean(axis=0)
    ends = [
        score_interval(mean, mean_error(s, clusters=o.clusters))
        for s, mean in zip(o.scores.T, score, strict=True)
    ]
    frame = pd.DataFrame(
        {
            "name": o.arms,
            "short": [short(a) for a in o.arms],
            "x": cost,
            "y": score,
            "low": [low for low, _ in ends],
            "high": [high for _, high in ends],
            "front": pareto_mask(cost, score),
        }
    ).sort_values("x")
    layers = points(frame, x_title="mean cost, USD per 1,000 requests", y_title="mean score")
    front = frame[frame["front"]]["name"].tolist()
    return Figure(
        key="scatter",
        title="Mean score and price of every model",
        caption="Dark: no cheaper model scores as well. Bars: two-sided 95 % intervals of the mean score.",
        alt=f"Mean score against cost of {len(o.arms)} models. "
        f"No cheaper model is as good as: {', '.join(front)}.",
        chart=alt.layer(*layers).add_params(NARROW).properties(height=400),
        table=FigureTable(
            ["Model", "USD per 1,000 requests", "Mean score"],
            [[r.name, f"{r.x:.4g}", f"{r.y:.3f}"] for r in frame.itertuples(index=False)],
        ),
    )


def tasks(values: np.ndarray, rows: list[str], columns: list[str]) -> Figure:
    """Figure of the mean score of each model on each task.

    Args:
        values: `[tasks, models]` mean scores.
        rows, columns: names of the tasks and of the models.
    """
    best = [columns[int(j)] for j in values.argmax(axis=1)]
    return Figure(
        key="tasks",
        title="Mean score of each model on each task",
        caption="Darker is higher; best model first.",
        alt=f"Heat map of mean scores, {len(rows)} tasks by {len(columns)} models. Best on most tasks: "
        f"{max(set(best), key=best.count)}.",
        chart=heatmap(values, rows, columns, what="mean score"),
        table=_matrix("Task", values, rows, columns),
    )


def correlations(values: np.ndarray, names: list[str], note: str) -> Figure:
    """Figure of the correlations between the scores of the models within tasks.

    Args:
        values: `[K, K]` correlations.
        names: names of the models.
        note: sentence on the blocks into which the models fall.
    """
    return Figure(
        key="correlation",
        title="Correlation of the models' scores within tasks",
        caption="Models ordered by similarity. Negative values carry a minus sign and the other colour.",
        alt=f"Heat map of correlations between {len(names)} models. {note}",
        chart=heatmap(values, names, names, what="correlation", diverging=True),
        table=_matrix("Model", values, names, names),
    )


def _matrix(what: str, values: np.ndarray, rows: list[str], columns: list[str]) -> FigureTable:
    """Return a matrix as the table of a figure; `what` is the head of the column with the row names."""
    cells = [
        [name, *("–" if not np.isfinite(v) else f"{v:.2f}" for v in row)]
        for name, row in zip(rows, values, strict=True)
    ]
    return FigureTable([what, *columns], cells)
