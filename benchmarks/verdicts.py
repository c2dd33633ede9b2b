"""Are verdicts right? Tables whose truth is known, from the file to the decision.

    python -m benchmarks.verdicts                          # 200 tables of 100 to 20,000 prompts, on two cores
    python -m benchmarks.verdicts --tables 20 --most 1000  # some of them, none larger
    python -m benchmarks.verdicts --messages FILE          # every form of message that they bring forth

`tests.verdict_tables` says how a table is made and when its verdict is wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.script import Script
from cabs_core.base.atomic import write_text
from tests.faults import every_form, provoked
from tests.verdict_tables import Judged, judge, summary


def _judge(job: tuple[int, int]) -> Judged:
    return judge(*job)


def main(argv: Sequence[str] | None = None) -> None:
    """Judge the tables and print the figures; those that went wrong one by one."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first table")
    parser.add_argument("--most", type=int, default=20_000, help="prompts of the largest table")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--messages",
        type=Path,
        help="write every form of message to this file, once: of these tables, of mistakes in tables "
        "and pool files, of commands",
    )
    args = parser.parse_args(argv)
    jobs = [(seed, args.most) for seed in range(args.first, args.first + args.tables)]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        rows = []
        for row in pool.imap(_judge, jobs):
            rows.append(row)
            if len(rows) % 20 == 0:
                print(f"{len(rows)} of {len(jobs)} tables", flush=True)
    for row in rows:
        if row.refused or any(v[3] for v in row.verdicts) or row.promise == (True, False):
            w = row.world
            print(
                w.seed,
                w.prompts,
                len(w.usd),
                w.gaps,
                w.kind,
                "pays" if w.pays else "",
                row.refused,
                row.verdicts,
                row.promise,
            )
    figures = summary(rows)
    print(json.dumps(figures, indent=1))
    if args.messages:
        with tempfile.TemporaryDirectory() as folder:
            faults = [
                (heading, f"{mistake}: ", text.replace(f"{folder}/", ""))
                for heading, mistake, text in provoked(Path(folder))
            ]
        tables = [(heading, "", text) for row in rows for heading, text in row.messages]
        write_text(args.messages, every_form([*tables, *faults]))
    if args.json:
        by_table = [
            {"seed": r.world.seed, "prompts": r.world.prompts, "verdicts": r.verdicts, "promise": r.promise}
            for r in rows
        ]
        write_text(args.json, json.dumps({**figures, "each": by_table}, indent=1))


if __name__ == "__main__":
    main()
