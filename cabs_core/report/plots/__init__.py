"""Plots: one Vega-Lite specification per figure, drawn in a page (by Vega) and as a PNG (by vl-convert).

Colours are CSS variables in a page, so that one drawing serves light, dark and print, and fixed in a PNG.
Series differ in shape and dash too, and bear their names.
"""

from cabs_core.report.plots.charts import bars, heatmap, intervals, lines, points
from cabs_core.report.plots.figure import Figure, FigureTable, ViewChoice
from cabs_core.report.plots.page import render_page
from cabs_core.report.plots.results import plot_frontier, plot_regret, utility_plot
from cabs_core.report.plots.theme import Style

__all__ = [
    "Figure",
    "FigureTable",
    "Style",
    "ViewChoice",
    "bars",
    "heatmap",
    "intervals",
    "lines",
    "plot_frontier",
    "plot_regret",
    "points",
    "render_page",
    "utility_plot",
]
