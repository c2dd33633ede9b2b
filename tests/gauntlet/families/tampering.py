"""Files of a finished home altered, cut, deleted or swapped: the next run makes them again or says what is
wrong."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from .. import homes
from ..homes import MINE, OTHER, STAGES
from ..runner import Nonsense, pick

COUNT, QUICK, WHOLE_RUNS = 70, 1, True
LIMIT = 1800.0
#: alterations of one home before the next run
AT_ONCE = 3
#: files below CABS_HOME, by kind
KINDS = {
    **{stage: f"artifacts/{stage}/{MINE}/**/*" for stage in STAGES},
    "replay": f"artifacts/replay/{MINE}/*/*/*.parquet",
    "record of a stage": f"artifacts/*/{MINE}/provenance.json",
    "record of a replay": f"artifacts/replay/{MINE}/*/*/provenance.json",
    "mart": "artifacts/marts/*.parquet",
    "record of a mart": "artifacts/marts/records/*.json",
    "database of the marts": "artifacts/marts/*.duckdb",
    "report": f"artifacts/reports/{MINE}/**/*",
    "leaderboard": "artifacts/leaderboard/**/*",
    "public leaderboard": "artifacts/reports/*.html",
    "its tables": "artifacts/reports/tables/*",
    "embedding store": "embeddings/*/shards/**/*.safetensors",
    "cache": "cache/**/*",
    "index of the runs": "dagster/history/runs/index.db",
    "database of the runs": "dagster/history/runs.db",
}
#: what is read only by stages that are made again: so these are deleted too
READERS = {"embedding store": f"artifacts/prompt_embeddings/{MINE}", "cache": f"artifacts/reports/{MINE}"}
WAYS = ("flip", "truncate", "delete", "swap")


def prepare() -> tuple[Path, dict[str, str]]:
    """A finished home with two pools, and what it holds."""
    home = homes.finished_twice()
    return home, homes.fingerprints(home)


def probe(tally, rng, ready) -> None:
    """A few alterations, and a run."""
    original, expected = ready
    with homes.copied(original) as home:
        altered: dict[Path, tuple[str, str]] = {}
        for _ in range(AT_ONCE):
            kind, way = pick(rng, list(KINDS)), pick(rng, WAYS)
            files = sorted(p for p in home.glob(KINDS[kind]) if p.is_file() and p not in altered)
            if files:
                path = pick(rng, files)
                _alter(rng, home, path, way)
                altered[path] = (kind, way)
                tally.calls[way] += 1
                tally.calls[f"of: {kind}"] += 1
            if kind in READERS:
                shutil.rmtree(home / READERS[kind], ignore_errors=True)  # or it is deleted already
        wrong = {path: _hash(path) for path in altered}
        alterations = [f"{way} {path.relative_to(home)}" for path, (_, way) in altered.items()]
        try:
            ended = homes.in_words(homes.cabs(home, "run", "--pool", MINE))
            _results(home, expected, original, wrong, altered, ended)
        except Nonsense as error:
            raise Nonsense(f"after {alterations}: {error}") from None
        tally.calls["made again" if ended.code == 0 else "refused in words"] += 1


def _results(home, expected, original, wrong, altered, ended) -> None:
    if ended.code:
        named = [
            path
            for path, (kind, _) in altered.items()
            if "of the runs" in kind or path.name in ended.text or path.parent.name in ended.text
        ]
        if not named:
            raise Nonsense(f"refused without naming one of them: {ended.text[-600:]}")
        return
    homes.same(expected, homes.fingerprints(home))
    for path, (kind, _) in altered.items():
        if kind.endswith("of the runs") or kind in READERS:
            continue  # Dagster's own; what nobody needs may stay as it is
        if _hash(path) == wrong[path] != _hash(original / path.relative_to(home)):
            raise Nonsense(f"the file is still there as altered: {ended.text[-600:]}")
    script = next((original / "cache/pages").iterdir()).read_text(encoding="utf-8")
    if script not in (home / "artifacts/reports" / MINE / "index.html").read_text(encoding="utf-8"):
        raise Nonsense("the page holds another script")


def _alter(rng, home: Path, path: Path, way: str) -> None:
    data = path.read_bytes()
    if way == "delete":
        path.unlink()
    elif way == "truncate":
        path.write_bytes(data[: int(rng.integers(len(data)))] if data else b"x")
    elif way == "flip":
        at = int(rng.integers(len(data))) if data else 0
        path.write_bytes(
            data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :] if data else b"x"
        )
    else:
        swapped = Path(str(path).replace(f"/{MINE}/", f"/{OTHER}/"))
        if swapped == path or not swapped.is_file():  # no file of one pool: another of the same kind
            beside = sorted(p for p in path.parent.iterdir() if p.is_file() and p != path)
            swapped = pick(rng, beside) if beside else path
        path.write_bytes(swapped.read_bytes() if swapped != path else data[::-1])


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "none"
