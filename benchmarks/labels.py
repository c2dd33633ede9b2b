"""Do labels earn their cost? Is the interval of "requests until earned back" right, and the probability?

    python -m benchmarks.labels earned [--tables 300]    # coverage of the interval, by world and size
    python -m benchmarks.labels next [--tables 60]       # 200 more prompts: decided, beside what was said
    ... [--json FILE]

The worlds are those of `tests.label_worlds`.
"""

from __future__ import annotations

from benchmarks.script import Script, write_figures
from tests.label_worlds import calibration, earned, next_prompts


def main(arguments: list[str] | None = None) -> None:
    """Run one part."""
    parser = Script(__file__, __doc__)
    parser.add_argument("part", nargs="?", choices=["earned", "next"], default="earned")
    parser.add_argument("--tables", type=int, help="Default: 300, of next 60.")
    given = parser.parse_args(arguments)
    if given.part == "earned":
        write_figures(earned(given.tables or 300), given.json)
        return
    rows = next_prompts(given.tables or 60)
    for row in calibration(rows, (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.01)):
        print(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    write_figures(rows, given.json)


if __name__ == "__main__":
    main()
