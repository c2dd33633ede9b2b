"""The theory page: the figures of `experiments` as tables, charts and what they say about the theorems."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from cabs_core.report.plots.charts import encodings
from cabs_core.report.plots.figure import Figure, FigureTable
from cabs_core.report.plots.page import render_page
from cabs_core.report.plots.theme import default_styles

TEMPLATES = Path(__file__).parent / "templates"


def number(value: Mapping[str, float], form: str = ".2f") -> str:
    """An estimate with its interval."""
    return f"{value['mean']:{form}} ({value['low']:{form}} to {value['high']:{form}})"


def _means(series: Mapping[str, Any], form: str) -> str:
    return ", ".join(format(point["mean"], form) for point in series["points"])


#: the figures of every finding, in the order of `findings`
FIGURES = (("alpha", "time", "dim", "arms"), ("noise",), ("bias",), ("square",), ("both",), ("loss",))


def findings(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(heading, sentences) of every experiment, written from its figures."""
    rate, noise = figures["rate"], figures["noise"]
    square, both = figures["square error"], figures["best of both"]
    alpha, loss = rate["alpha"], figures["printed loss"]
    times = "; ".join(f"{name}: {number(v)}" for name, v in rate["time"]["slopes"].items())
    lows, highs = (f(r["mean"] for r in alpha["ratio"]) for f in (min, max))
    least, most = (f(r["mean"] for r in alpha["forced"]) for f in (min, max))
    growth = [f"{s['name']}: {_means(s, '+.0f')}" for s in noise["series"]]
    levels = ", ".join(f"{x:g}" for x in noise["series"][0]["x"])
    bias = noise["printed bias"]
    biases = "; ".join(f"{s['name']}: {_means(s, '.0f')}" for s in noise["bias"]["series"])
    slopes = {name: number(v) for name, v in square["slopes"].items()}
    price = "; ".join(
        f"{s['name']}: {_means(s, '.0f')} (slope {number(both['slopes'][s['name']])}, "
        f"final weight of the graph expert {both['weights'][s['name']]['mean']:.2f})"
        for s in both["series"]
    )
    losses = "; ".join(
        f"{s['name']}: {_means(s, '.0f')} (slope {number(loss['slopes'][s['name']])}"
        + (
            f", final weight of CABS-C {loss['weights'][s['name']]['mean']:.2f})"
            if s["name"] in loss["weights"]
            else ")"
        )
        for s in loss["series"]
    )
    horizons = ", ".join(f"{x:.0f}" for x in both["series"][0]["x"])
    return [
        (
            f"E1: regret in alpha, T, d and K ({alpha['setting']}; {rate['time']['setting']})",
            "Theorem: regret is at most of order sqrt(alpha T d ln(T/d)), slope 1/2 in alpha, T and d, "
            f"0 in K. Measured slope in alpha {number(alpha['slope'])}; regret over that root lies "
            f"between {lows:.2f} and {highs:.2f}. Slopes in T: {times}. In d ({rate['dim']['setting']}): "
            f"{_means(rate['dim']['series'][0], '.0f')}, slope {number(rate['dim']['slope'])}; "
            f"in K ({rate['arms']['setting']}): {_means(rate['arms']['series'][0], '.0f')}, "
            f"slope {number(rate['arms']['slope'])}. What this can tell: at these sizes regret "
            f"is what the program's own exploration costs, {least:.2f} to {most:.2f} times (alpha - 1) "
            "T / gamma, which is linear in alpha. The theorem is an upper bound with unnamed constants, "
            "so nothing here contradicts it, and nothing confirms its root.",
        ),
        (
            f"E2: noise of the surrogates ({noise['setting']}; "
            f"regret without noise {number(noise['without noise'], '.0f')})",
            "Theorem: noise that is fresh each round costs at most of order eps sqrt(K^2 T / (m + 1)), "
            f"{noise['bound'][-1]:.0f} at eps {noise['series'][0]['x'][-1]:g}. Measured added regret "
            f"at eps {levels}: {'; '.join(growth)}. Noise that is a fixed function of the context is outside "
            "the paper's fourth assumption and is not averaged away. The printed bias estimator, which "
            "subtracts the mean gap between surrogate and own prediction, takes away what is to be learnt: "
            f"RegSq {number(bias['RegSq'], '.0f')} against {number(bias['RegSq of plain targets'], '.0f')} "
            f"for plain targets, without any noise, regret {number(bias['regret'], '.0f')}.",
        ),
        (
            f"E2: surrogates with a bias ({noise['bias']['setting']})",
            "The paper's fourth assumption gives every arm's surrogates a constant bias b_j, "
            "which Algorithm 1 estimates. Regret at biases uniform "
            f"in +-{', '.join(f'{x:g}' for x in noise['bias']['series'][0]['x'])}: {biases}. The printed "
            "estimator keeps its promise, regret hardly depends on the bias (nothing is subtracted "
            "from an arm's first surrogate), and pays for it whether or not there is one; plain targets "
            "learn the bias as if it were a reward; the realised one compares with outcomes of plays.",
        ),
        (
            f"E3: Assumption 2 ({square['setting']})",
            "Assumption 2 wants RegSq(T) to grow like d ln T, a slope near 0 in T. Plain targets: "
            f"{slopes['plain targets']}. Printed targets r / p: {slopes['printed targets r / p']}. "
            "Where that slope is 1 the theorem says nothing about the printed update.",
        ),
        (
            f"E3: best of both ({both['setting']})",
            f"Regret of CABS-D less that of its better expert alone at T = {horizons}. {price}. "
            "A slope below 1 says that the price of not knowing the better expert vanishes a round; a bound "
            "with unnamed constants is not contradicted by any of these.",
        ),
        (
            f"E4: the printed loss ({loss['setting']})",
            "Line 14 of Algorithm 2 charges CABS-C 1 - s for the surrogates s of every revealed arm, "
            "so it believes the oracle that flatters; the fourth assumption allows a constant bias "
            f"of every arm. Regret at T = {', '.join(f'{x:.0f}' for x in loss['series'][0]['x'])}: "
            f"{losses}. Where a slope is 1, regret is linear in T: "
            "with the printed loss the mixture is no safeguard against its own oracle.",
        ),
    ]


def charts(figures: Mapping[str, Any]) -> dict[str, Figure]:
    """A figure for every experiment."""
    rate, noise = figures["rate"], figures["noise"]
    square, both = figures["square error"], figures["best of both"]
    return {
        "alpha": _chart("alpha", "Regret by independence number", rate["alpha"], "alpha", "regret", log=True),
        "time": _chart("time", "Regret by horizon", rate["time"], "T", "regret", log=True),
        "dim": _chart("dim", "Regret by dimension", rate["dim"], "d", "regret", log=True),
        "arms": _chart(
            "arms", "Regret by number of arms at one alpha", rate["arms"], "K", "regret", log=True
        ),
        "noise": _chart("noise", "What noise in the surrogates costs", noise, "eps", "added regret"),
        "bias": _chart(
            "bias", "What a bias of the surrogates costs", noise["bias"], "bias", "regret", linear_x=True
        ),
        "square": _chart("square", "RegSq by horizon", square, "T", "RegSq(T)", log=True),
        "both": _chart("both", "CABS-D less its better expert", both, "T", "added regret"),
        "loss": _chart(
            "loss", "CABS-D with the printed loss", figures["printed loss"], "T", "regret", log=True
        ),
    }


def _chart(
    key: str,
    title: str,
    experiment: Mapping[str, Any],
    x: str,
    y: str,
    log: bool = False,
    linear_x: bool = False,
) -> Figure:
    rows = [
        {"series": s["name"], "x": at, "y": p["mean"], "low": p["low"], "high": p["high"]}
        for s in experiment["series"]
        for at, p in zip(s["x"], s["points"], strict=True)
    ]
    frame = pd.DataFrame(rows)
    if log:  # an interval may reach below what a logarithm shows
        frame["low"] = frame["low"].clip(lower=frame["y"].min() / 2)
    styles = default_styles([s["name"] for s in experiment["series"]])
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=True)
    x_scale = alt.Scale(nice=False) if linear_x else alt.Scale(type="log", nice=False)
    across = alt.X("x:Q", title=x, scale=x_scale, axis=_axis(sorted(set(frame["x"]))))
    up = _axis(_round_ticks(frame["low"].min(), frame["high"].max()) if log else None)
    colour, _, shape = encodings(styles)
    base = (
        alt.Chart(frame).transform_filter("indexof(hidden, datum.series) < 0").encode(x=across, color=colour)
    )
    height = alt.Y("y:Q", title=y, scale=scale, axis=up)
    read = ["series:N", "x:Q", "y:Q", "low:Q", "high:Q"]
    chart = (
        alt.layer(
            base.mark_rule().encode(y=alt.Y("low:Q", title=y, scale=scale, axis=up), y2="high:Q"),
            base.mark_line().encode(y=height),
            base.mark_point(filled=True, size=55, opacity=1).encode(y=height, shape=shape, tooltip=read),
        )
        .add_params(alt.param(name="hidden", value=[]))
        .properties(height=300)
    )
    table = [
        [r["series"], f"{r['x']:g}", f"{r['y']:.1f}", f"{r['low']:.1f} to {r['high']:.1f}"] for r in rows
    ]
    return Figure(
        key=key,
        title=title,
        caption=f"{experiment['setting'] if 'setting' in experiment else ''}; bars are 95 % intervals.",
        alt=f"{title}: {y} against {x}; the figures are in the table below.",
        chart=chart,
        table=FigureTable(["series", x, y, "95 % interval"], table),
        legend=tuple((name, s, True) for name, s in styles.items()) if len(styles) > 1 else (),
    )


def _axis(values: list[float] | None) -> alt.Axis:
    """An axis with plain numbers; values: where its ticks stand, None: as the chart likes."""
    ticks: dict[str, Any] = {"tickCount": 6} if values is None else {"values": values, "labelOverlap": True}
    return alt.Axis(format=",.6~g", **ticks)


def _round_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 in every decade between two numbers > 0."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def markdown(figures: Mapping[str, Any]) -> str:
    """The findings and their figures as Markdown."""
    lines = [f"\n### {heading}\n\n{text}" for heading, text in findings(figures)]
    for figure in charts(figures).values():
        headers = figure.table.headers
        lines += [f"\n| {' | '.join(headers)} |", "|---" * len(headers) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in figure.table.rows]
    return "\n".join(lines)


def fill(figures: Mapping[str, Any], folder: Path) -> dict[str, bytes]:
    """index.html (self-contained), figures.json and a PNG a figure into a folder; the PNGs by key."""
    drawn = charts(figures)
    sections = [
        (heading, text, [drawn[key] for key in keys])
        for (heading, text), keys in zip(findings(figures), FIGURES, strict=True)
    ]
    page = render_page("theory.html.j2", TEMPLATES, figures=drawn, sections=sections)
    (folder / "index.html").write_text(page, encoding="utf-8")
    (folder / "figures.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    images = {key: figure.png for key, figure in drawn.items()}
    for key, data in images.items():
        (folder / f"{key}.png").write_bytes(data)
    return images
