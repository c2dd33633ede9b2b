"""A picture of what a router learnt: utility, plays per model and spending over the scored decisions of its log.

python -m cabs_core.router.plot --router router --out learned.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from cabs_core.atomic import write_bytes
from cabs_core.errors import RouterError
from cabs_core.paths import default_log
from cabs_core.plots import Figure, FigureTable
from cabs_core.plots.theme import default_styles
from cabs_core.router.bundle import read_manifest
from cabs_core.router.events import EventLog
from cabs_core.utility import clipped_utility

_POINTS = 400  # of a line: more cannot be seen


def plot_learning(router: str | Path, out: str | Path, log: str | Path | None = None) -> Path:
    """Write the picture, as PNG or SVG by the name's ending.

    Raises:
        RouterError: there is no scored decision yet, or the name ends otherwise.
    """
    out = Path(out)
    if out.suffix.lower() not in (".png", ".svg"):
        raise RouterError(
            f"{out} names no kind of picture that can be written: expected NAME.png or NAME.svg"
        )
    manifest = read_manifest(router)
    events = EventLog(default_log(router) if log is None else log, read_only=True)
    scored = list(events.scored())
    events.close()
    decisions, rewards = [d for d, _ in scored], [r for _, r in scored]
    if not decisions:
        raise RouterError(f"{events.name} holds no scored decision yet: there is nothing to draw")
    figure = learning_figure(
        f"{manifest.policy} of pool {manifest.pool}",
        {arm: np.array([d.arm == arm for d in decisions]) for arm in manifest.names},
        rhos=np.array([d.rho for d in decisions]),
        scores=np.array([r.score for r in rewards]),
        costs=np.array([r.cost for r in rewards]),
    )
    write_bytes(out, figure.png if out.suffix.lower() == ".png" else figure.svg)
    return out


def learning_figure(
    title: str, played: dict[str, np.ndarray], *, rhos: np.ndarray, scores: np.ndarray, costs: np.ndarray
) -> Figure:
    """The three panels as a figure.

    Args:
        played: {model: bool [n], whether the decision was for it}, in the order of the decisions.
        rhos, scores, costs: [n] of the scored decisions; costs in USD.
    """
    t = np.arange(1, len(scores) + 1)
    points = np.unique(np.linspace(0, len(t) - 1, min(len(t), _POINTS)).astype(int))
    utility = np.cumsum(clipped_utility(scores, costs, rhos)) / t
    styles = default_styles(list(played))
    scale = alt.Scale(domain=list(played), range=[style.token for style in styles.values()])
    dashes = alt.Scale(domain=list(played), range=[[1, 0] if i < 10 else [4, 3] for i in range(len(played))])
    x = alt.X("t:Q", title="scored decisions")

    def panel(values: dict[str, np.ndarray], heading: str) -> alt.Chart:
        frames = [
            pd.DataFrame({"t": t[points], "value": v[points], "model": name}) for name, v in values.items()
        ]
        y = alt.Y("value:Q", title=heading)
        return alt.Chart(pd.concat(frames)).encode(x=x, y=y).properties(width=640, height=170)

    shares = panel({arm: np.cumsum(mask) / t for arm, mask in played.items()}, "share of decisions")
    chart = alt.vconcat(
        panel({"all": utility}, "mean utility so far").mark_line(color="var(--c0)"),
        shares.mark_line().encode(
            color=alt.Color("model:N", title=None, scale=scale), strokeDash=alt.StrokeDash("model:N", title=None, scale=dashes)
        ),
        panel({"all": np.cumsum(costs)}, "spent, USD").mark_line(color="var(--c0)"),
    )  # fmt: skip
    return Figure("learning", title, "", "", chart, FigureTable([], []))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw what a router learnt.")
    parser.add_argument("--router", default="router")
    parser.add_argument("--log")
    parser.add_argument("--out", default="learned.png")
    options = parser.parse_args()
    print(plot_learning(options.router, options.out, options.log))
