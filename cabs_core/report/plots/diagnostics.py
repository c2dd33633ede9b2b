"""Small plots for metadata: diagnostics of oracles (PNG under 100 kB), utility of a partition (SVG)."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from cabs_core.report.plots.charts import bars, lines, short
from cabs_core.report.plots.figure import Figure, FigureTable
from cabs_core.report.plots.theme import Style, default_styles

_NONE = FigureTable([], [])

_MOST_ARMS = 40


def diagnostic_plots(report: dict[str, Any], training: dict[str, Any] | None = None) -> dict[str, bytes]:
    """Plots of what `oracles.diagnose` returned: errors, calibration, arms and, given the log, training."""
    plots = {"errors": _errors(report), "calibration": _calibration(report), "arms": _arms(report)}
    if training and len(training.get("epochs", [])) > 1:
        plots["training"] = _training(training)
    return plots


def utility_plot(rows: list[dict[str, Any]], title: str) -> bytes:
    """Utility of every policy with its 95 % interval over trials and queries, as SVG.

    rows: policy, utility, margin (half of the interval); the best first.

    Drawn for every partition: as PNG it takes three times as long and six times the room.
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
    return Figure("utility", title, "", "", bars(frame, x_title="utility"), _NONE, width=480).svg


def _png(title: str, chart: Any) -> bytes:
    return Figure("diagnostics", title, "", "", chart, _NONE, width=480).png


def _errors(report: Mapping[str, Any]) -> bytes:
    parts = []
    for head, models in report["heads"].items():
        used = report["chosen"][head]
        names = sorted(models, key=lambda n: models[n]["error"])
        errors = np.array([models[n]["error"] for n in names])
        margins = np.array([models[n]["margin"] for n in names], dtype=float)  # nan where nothing tells
        frame = pd.DataFrame(
            {
                "name": names,
                "value": errors,
                "low": errors - margins,
                "high": errors + margins,
                "text": [f"{models[n]['error']:.4g}" + (" (in use)" if n == used else "") for n in names],
                "style": [Style(0 if n == used else 8) for n in names],
            }
        )
        parts.append(bars(frame, x_title="squared error").properties(title=head, width=230))
    return _png("Squared error of every candidate", alt.hconcat(*parts, spacing=70))


def _calibration(report: Mapping[str, Any]) -> bytes:
    bins = report["calibration"]
    shown = [i for i, count in enumerate(bins["counts"]) if count]
    frame = pd.DataFrame(
        {
            "series": "mean score",
            "x": [float(bins["mean_prediction"][i]) for i in shown],
            "y": [float(bins["mean_score"][i]) for i in shown],
        }
    )
    chart = lines(
        frame,
        {"mean score": Style(0)},
        x_title="predicted score",
        y_title="mean score",
        diagonal=True,
        symbols=0,
        height=300,
    )
    return _png(f"Calibration, mean gap {bins['error']:.3f}", chart)


def _arms(report: Mapping[str, Any]) -> bytes:
    arms, title = report["arms"], "The oracles, model by model"
    if len(arms) > _MOST_ARMS:  # more cannot be read, nor drawn in 100 kB
        arms = sorted(arms, key=lambda arm: float(arm["score_r2"] or 0.0))[:_MOST_ARMS]
        title = f"The oracles: the {_MOST_ARMS} of {len(report['arms'])} models with the lowest R²"
    columns = (
        ("score_r2", "R² of the score"),
        ("score_rank_correlation", "rank correlation"),
        ("surrogate_bias", "surrogate bias"),
        ("surrogate_noise", "surrogate noise"),
    )
    parts = []
    for at, (key, heading) in enumerate(columns):
        values = [float(a[key] or 0.0) for a in arms]
        frame = pd.DataFrame({"name": [short(a["arm"]) for a in arms], "value": values})
        y = alt.Y("name:N", sort=list(frame["name"]), title=None, axis=alt.Axis(labels=not at, ticks=False))
        bar = alt.Chart(frame).mark_bar(color="var(--c0)").encode(x=alt.X("value:Q", title=None), y=y)
        parts.append(bar.properties(title=heading, width=150, height=alt.Step(14)))
    return _png(title, alt.hconcat(*parts))


def _training(training: Any) -> bytes:
    frame = pd.DataFrame(
        [
            {"series": head, "x": float(epoch["epoch"]), "y": float(epoch[head])}
            for head in ("accuracy", "propagation")
            for epoch in training["epochs"]
        ]
    )
    chart = lines(
        frame,
        default_styles(["accuracy", "propagation"]),
        x_title="epoch",
        y_title="squared error on validation",
        height=280,
    )
    return _png(f"Training, best epoch {training['best_epoch']}", chart)
