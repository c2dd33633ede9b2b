"""kill -9 in every stage, several times over, then a run to its end: the same bytes as a run that nobody
touched."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

from .. import homes
from ..homes import MINE, STAGES
from ..runner import Nonsense

COUNT, QUICK, WHOLE_RUNS = 20, 1, True
LIMIT = 1800.0
#: kills before a run may end
KILLS = 7
#: what is new below CABS_HOME while a stage is at work, or when it has just ended
MOMENTS = {
    "start": "dagster/dagster.yaml",
    **{stage: f"artifacts/{stage}/*" for stage in ("outcomes", "splits")},
    "embeddings": "embeddings/*/plans/*.npy",
    **{stage: f"artifacts/{stage}/*" for stage in STAGES},
    "replay": f"artifacts/replay/{MINE}/*/*",
    "first marts": "artifacts/marts/*.parquet",
    "marts": "artifacts/marts/mart_*.parquet",
    "report": "artifacts/reports/*",
    "leaderboard": "artifacts/*leaderboard*",
}
ORDER = list(MOMENTS)


def prepare() -> dict[str, str]:
    """What an uninterrupted run leaves."""
    return homes.fingerprints(homes.finished())


def probe(tally, rng, ready: dict[str, str]) -> None:
    """A chain of kills, and the run to the end."""
    with tempfile.TemporaryDirectory(prefix="probe-kills-") as folder:
        home = Path(folder)
        homes.drop(home, MINE)
        # roughly in the order of the chain, so that most of them find their stage still to be done
        moments = sorted(rng.choice(len(ORDER), KILLS, replace=False).tolist())
        for moment in (ORDER[i] for i in moments):
            where = _killed(home, moment, delay=float(rng.choice([0.0, 0.003, 0.03, 0.3]) * rng.random()))
            tally.calls[f"killed in {where}"] += 1
        homes.in_words(homes.cabs(home, "run", "--pool", MINE), codes=(0,))
        again = homes.in_words(homes.cabs(home, "run", "--pool", MINE), codes=(0,))
        if "\n0 runs in" not in again.text:
            raise Nonsense(f"the run after the last one made something: {again.text[-800:]}")
        homes.same(ready, homes.fingerprints(home))
        left = [*(home / "artifacts").rglob(".*.tmp"), *(home / "embeddings").rglob("plans/*")]
        if left:
            raise Nonsense(f"left behind: {[str(p.relative_to(home)) for p in left[:5]]}")
        tally.calls["same as an uninterrupted run"] += 1


def _killed(home: Path, moment: str, delay: float) -> str:
    """Start a run, wait until a stage is at work, kill it; where that was in words."""
    before = set(home.glob(MOMENTS[moment]))
    process = homes.start(home, "run", "--pool", MINE)
    while process.poll() is None and not set(home.glob(MOMENTS[moment])) - before:
        time.sleep(0.001)
    if process.poll() is None:
        time.sleep(delay)
    ended = process.end(signal.SIGKILL)
    if ended.code == -signal.SIGKILL:
        return moment
    homes.in_words(ended, codes=(0,))
    return "nothing: it had ended before"
