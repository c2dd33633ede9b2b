"""The same charts as small PNG images, for the metadata of assets and for mails."""

from __future__ import annotations

import io

from cabs_core.report.charts import Chart

LIMIT = 100_000
_COLOURS = (
    "#0072b2", "#d55e00", "#00805a", "#b8578f", "#c98a00", "#2f93cf", "#6b4fbb", "#8c564b", "#7a7a7a", "#222222",
)  # fmt: skip


def render(chart: Chart) -> bytes:
    """PNG of at most 100 kB (the resolution is lowered until it fits)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if chart.rows:
        figure = Figure(figsize=(7, 0.25 * len(chart.rows) + 1.1), layout="constrained")
        _forest(figure.subplots(), chart)
    else:
        wide = len(chart.panels) > 1
        figure = Figure(figsize=(10.5 if wide else 7, 4.2 if wide else 4.6), layout="constrained")
        axes = figure.subplots(1, len(chart.panels), squeeze=False)[0]
        for axis, panel in zip(axes, chart.panels):
            _panel(axis, panel)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=5 if wide else 4, fontsize=7, frameon=False
        )
    figure.suptitle(chart.title, fontsize=11)
    canvas = FigureCanvasAgg(figure)
    for dpi in (100, 80, 60, 45, 30):
        buffer = io.BytesIO()
        figure.set_dpi(dpi)
        canvas.print_png(buffer, metadata={"Description": chart.alt, "Software": ""})
        if buffer.tell() < LIMIT:
            break
    return buffer.getvalue()


def _dash(pattern: str):
    return (0, tuple(float(p) / 1.5 for p in pattern.split())) if pattern else "solid"


def _panel(axis, panel) -> None:
    for s in panel.series:
        if not s.visible:
            continue
        colour = _COLOURS[s.colour]
        axis.plot(s.x, s.y, color=colour, linestyle=_dash(s.dash), linewidth=1.4, label=s.name)
        if s.low is not None:
            axis.fill_between(s.x, s.low, s.high, color=colour, alpha=0.13, linewidth=0)
        if s.markers is not None:
            axis.plot(*s.markers.T, ".", color=colour, markersize=3)
    if panel.zero_line:
        axis.axhline(0, color="#555555", linewidth=0.8)
    axis.set_title(panel.title, fontsize=9, loc="left")
    axis.set_xlabel(panel.x_label, fontsize=8)
    axis.set_ylabel(panel.y_label, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _forest(axis, chart: Chart) -> None:
    for i, r in enumerate(chart.rows):
        colour = _COLOURS[r.colour]
        axis.plot([r.low, r.high], [i, i], color=colour, linewidth=2)
        axis.plot(
            r.value, i, "o", color=colour, markersize=6, markerfacecolor="white" if r.hollow else colour
        )
    axis.set_yticks(range(len(chart.rows)), [r.name for r in chart.rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(chart.x_label, fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right", "left"]].set_visible(False)
