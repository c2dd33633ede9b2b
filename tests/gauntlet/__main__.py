"""`python -m tests.gauntlet`: see the package."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .play import HEAD, behaviours, play_all
from .stage import ROOT, Stage


def main() -> int:
    """Make what it needs, play, print the table; 1 where a behaviour failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gauntlet")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="behaviours whose theme or name holds this word"
    )
    parser.add_argument(
        "--short", action="store_true", help="the short one, by this Python, without the clients' environment"
    )
    parser.add_argument("--routers", type=Path, help=argparse.SUPPRESS)  # given by the run that made them
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gauntlet-") as name:
        if given.routers is None:
            from .environment import make_routers, ready

            routers = make_routers(Path(name) / "routers")
            if not given.short:
                python = ready(ROOT / "build" / "gauntlet", routers / "hier_mix")
                command = [str(python), "-m", "tests.gauntlet", *sys.argv[1:], "--routers", str(routers)]
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                return subprocess.run(command, cwd=ROOT, env=environment).returncode
            given.routers = routers
        begin = time.monotonic()
        stage = Stage(Path(name) / "stage", given.routers)
        print(HEAD)
        try:
            results = play_all(stage, behaviours(short=given.short, only=given.only))
        finally:
            stage.close()
    counts = {verdict: sum(r.verdict == verdict for r in results) for verdict in ("pass", "FAIL", "skip")}
    print(
        f"\n{len(results)} behaviours in {time.monotonic() - begin:.0f} s: {counts['pass']} seen as "
        f"expected, {counts['FAIL']} not, {counts['skip']} not played"
    )
    return 1 if counts["FAIL"] or not counts["pass"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
