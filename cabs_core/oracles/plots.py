"""Small plots of the oracles' diagnostics, as PNG bytes for reports and metadata (each under 100 kB)."""

from __future__ import annotations

import io
from typing import Any

LARGEST = 100_000


def diagnostic_plots(report: dict[str, Any], training: dict[str, Any] | None = None) -> dict[str, bytes]:
    """Plots of what `diagnose` returned: 'errors', 'calibration', 'arms' and, given the log, 'training'."""
    plots = {"errors": _errors(report), "calibration": _calibration(report), "arms": _arms(report)}
    if training and len(training.get("epochs", [])) > 1:
        plots["training"] = _training(training)
    return plots


def _figure(width: float = 5.0, height: float = 3.2):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure) -> bytes:
    for dpi in (90, 60, 40):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        if buffer.tell() < LARGEST:
            break
    return buffer.getvalue()


def _errors(report) -> bytes:
    heads = report["heads"]
    figure = _figure(8.0, 3.0)
    for axis, (head, models) in zip(figure.subplots(1, len(heads)), heads.items(), strict=True):
        names = sorted(models, key=lambda n: -models[n]["error"])
        used = report["chosen"][head]
        colors = ["#1f77b4" if name == used else "#b8c4d0" for name in names]
        axis.barh(
            names, [models[n]["error"] for n in names], xerr=[models[n]["se"] for n in names], color=colors
        )
        low = min(models[n]["error"] for n in names)
        axis.set_xlim(left=0.9 * low)
        axis.set_title(f"{head}: squared error", fontsize=9)
        axis.tick_params(labelsize=8)
    return _png(figure)


def _calibration(report) -> bytes:
    bins = report["calibration"]
    figure = _figure(3.6, 3.4)
    axis = figure.subplots()
    shown = [i for i, count in enumerate(bins["counts"]) if count]
    axis.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    axis.plot([bins["mean_prediction"][i] for i in shown], [bins["mean_score"][i] for i in shown], "o-")
    axis.set_xlabel("predicted score")
    axis.set_ylabel("mean score")
    axis.set_title(f"calibration, mean gap {bins['error']:.3f}", fontsize=9)
    return _png(figure)


def _arms(report) -> bytes:
    arms = report["arms"]
    figure = _figure(8.0, 1.2 + 0.2 * len(arms))
    names = [a["arm"][:34] for a in arms]
    columns = (("score_r2", "R2 of the score"), ("score_rank_correlation", "rank correlation"),
               ("surrogate_bias", "surrogate bias"), ("surrogate_noise", "surrogate noise"))  # fmt: skip
    axes = figure.subplots(1, len(columns), sharey=True)
    for axis, (key, title) in zip(axes, columns, strict=True):
        axis.barh(names, [a[key] or 0.0 for a in arms], color="#1f77b4")
        axis.axvline(0.0, color="#555555", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
    return _png(figure)


def _training(training) -> bytes:
    figure = _figure(4.6, 3.0)
    axis = figure.subplots()
    epochs = training["epochs"]
    for head in ("accuracy", "propagation"):
        axis.plot([e["epoch"] for e in epochs], [e[head] for e in epochs], label=head)
    axis.axvline(training["best_epoch"], color="#999999", linewidth=1)
    axis.set_xlabel("epoch")
    axis.set_ylabel("squared error on validation")
    axis.legend(fontsize=8)
    return _png(figure)
