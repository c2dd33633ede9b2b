"""Do intervals of money hold the truth? Costs of known tails, on arrays, judged by the product's rules.

    python -m benchmarks.money_worlds                      # 400 tables a world and size
    python -m benchmarks.money_worlds gained --tables 60 --sizes 200

The share of a model's cost that a router saves, as a verdict prints it, or (`gained`) the USD that 1,000
requests gain. A printed 95 % interval holds the truth, or a refusal stands in its place. In brackets: how
many are printed, and the median width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.verdict_worlds import Rng, WorldTable, gap_of
from cabs_core.base.units import percentage

SIZES = (50, 100, 200, 500, 1000, 2000)


def _lognormal(sigma: float) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: rng.lognormal(-(sigma**2) / 2, sigma, n)


def _pareto(index: float) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: (1 + rng.pareto(index, n)) * (index - 1) / index


def _some(share: float, times: float) -> Callable[[Rng, int], np.ndarray]:
    """A share of the prompts so many times as dear."""
    usual = _lognormal(0.3)
    return lambda rng, n: (
        usual(rng, n) * np.where(rng.random(n) < share, times, 1.0) / (1 + share * (times - 1))
    )


#: costs of a prompt, mean 1
COSTS: dict[str, Callable[[Rng, int], np.ndarray]] = {
    **{f"sigma {sigma:g}": _lognormal(sigma) for sigma in (0.3, 0.5, 0.75, 1.0, 1.5, 2.0)},
    **{f"Pareto tail of {index:g}": _pareto(index) for index in (1.5, 2.0, 3.0)},
    "one in a hundred 20 times as dear": _some(0.01, 20.0),
    "one in twenty ten times as dear": _some(0.05, 10.0),
    "one in thirty 50 times as dear": _some(1 / 30, 50.0),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "four of five free": lambda rng, n: _lognormal(0.5)(rng, n) * 5.0 * (rng.random(n) < 0.2),
    "nineteen of twenty free": lambda rng, n: _lognormal(0.5)(rng, n) * 20.0 * (rng.random(n) < 0.05),
}


def _unpaired(
    rng: Rng, n: int, costs: Callable[[Rng, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, float]:
    """(paid, full, share saved): other prompts are dear for each."""
    return 0.6 * costs(rng, n), costs(rng, n), 0.4


def _paired(
    rng: Rng, n: int, costs: Callable[[Rng, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Dear prompts are dear for both."""
    length, own, other = costs(rng, n), _lognormal(0.5)(rng, n), _lognormal(0.5)(rng, n)
    return 0.6 * length * own, length * other, 0.4


def _routed(
    rng: Rng, n: int, costs: Callable[[Rng, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, float]:
    """The router asks the same model for two fifths, elsewhere one at a tenth of its price."""
    full = costs(rng, n)
    return np.where(rng.random(n) < 0.4, full, 0.1 * full * _lognormal(0.3)(rng, n)), full, 0.54


def _dear_in(share: float, times: float) -> Callable[[Rng, int], tuple[np.ndarray, np.ndarray, float]]:
    """Half the price, and a dear model for a share of the prompts."""

    def world(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray, float]:
        full = _lognormal(0.3)(rng, n)
        paid = np.where(rng.random(n) < share, times, 0.5) * full
        return paid, full, 0.5 - share * (times - 0.5)

    return world


#: {name: (draws paid, full and the share that is saved, mean cost of the dearest model)}
SAVINGS: dict[str, tuple[Callable[[Rng, int], tuple[np.ndarray, np.ndarray, float]], float]] = {
    f"{costs}, {kind}": (partial(pair, costs=draw), 1.0)
    for kind, pair in {"unpaired": _unpaired, "paired": _paired, "routed": _routed}.items()
    for costs, draw in COSTS.items()
}
SAVINGS |= {
    f"a model {times:g} times as dear in {percentage(share, None)}": (_dear_in(share, times), times)
    for share, times in ((0.02, 10.0), (0.005, 50.0))
}


def saved_interval(name: str, rng: Rng, n: int) -> tuple[bool, bool, float] | None:
    """(whether the truth lies below, above the interval of the share saved, its width); None: refused."""
    world, dearest = SAVINGS[name]
    paid, full, truth = world(rng, n)
    zero = np.zeros(n)
    saved = gap_of(WorldTable(zero[None], paid[None], zero, full, dearest=dearest)).saved(1)
    if saved is None or saved.low is None or saved.high is None:
        return None
    return truth < saved.low, truth > saved.high, saved.high - saved.low


def gained_interval(name: str, rng: Rng, n: int) -> tuple[bool, bool, float] | None:
    """The same of the USD that 1,000 requests gain; three times as many train prompts were paid for."""
    world, dearest = SAVINGS[name]
    (paid, full, truth), train, zero = world(rng, n), world(rng, 3 * n), np.zeros(n)
    call = float(max(train[0].max(), train[1].max(), dearest))
    gain = gap_of(WorldTable(zero[None], paid[None], zero, full, dearest=dearest, dearest_call=call)).gain(
        1e9, 1
    )
    if gain.low is None or gain.high is None:
        return None
    return 1000 * truth < gain.low, 1000 * truth > gain.high, gain.high - gain.low


INTERVALS = {"saved": saved_interval, "gained": gained_interval}


def measured(what: str, tables: int, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """One row a world and size, of the share `saved` or the USD `gained`: share of tables that print an
    interval, of these that hold the truth, that have it below, and the median width."""
    rows = []
    for number, name in enumerate(SAVINGS):
        for n in sizes:
            rng = np.random.default_rng([seed, n, number])
            intervals = [INTERVALS[what](name, rng, n) for _ in range(tables)]
            printed = np.array([i for i in intervals if i is not None]).reshape(-1, 3)
            held, below = (
                (float(1 - printed[:, :2].sum(axis=1).mean()), float(printed[:, 0].mean()))
                if len(printed)
                else (math.nan, math.nan)
            )
            width = float(np.median(printed[:, 2])) if len(printed) else math.nan
            rows.append(
                {"world": name, "n": n, "printed": len(printed) / tables, "holds": held, "below": below}
                | {"width": width}
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table: coverage (printed, width) by world and size."""
    parser = Script(__file__, __doc__)
    parser.add_argument("what", nargs="?", choices=list(INTERVALS), default="saved")
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args(argv)
    rows = measured(args.what, args.tables, args.sizes)
    print("| costs |", " | ".join(f"n {n}" for n in args.sizes), "|")
    for name in SAVINGS:
        cells = [
            f"{row['holds']:.2f} ({row['printed']:.2f}, {row['width']:.2f})" if row["printed"] else "(0)"
            for row in rows
            if row["world"] == name
        ]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
