"""Pool files: sound ones with a field, a line or bytes changed. Each is a pool that makes sense, or one short
PoolError."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

from cabs_core.base.errors import CabsError, PoolError
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pool_files import parse_rho_key, rho_key
from cabs_core.data.pools.find import list_pools, load_pool_file

COUNT, QUICK = 6000, 150

SOUND = (
    "title: Tickets\nsource:\n  kind: file\n  path: t.csv\n  columns: {task: null, cost: cost}\n"
    "models: [a, b]\n"
    "split: {fractions: [0.5, 0.2, 0.3], split_seed: 1}\nreplay:\n  trials: 2\n  rhos: [0, 0.5, 10]\n"
    "missing: drop_queries\npolicies: [random, lin_ucb]\ntuning_budget: 3\n",
    "source: {kind: synthetic, queries: 60, seed: 3}\n"
    "encoder: {name: tfidf-svd, max_length: 64, normalize: true}\n"
    "features: {kind: pca, dim: 4}\noracle: {kind: ridge, max_epochs: 5, learning_rate: 1e-3}\n"
    "replay: {answer_value_usd: [0.001, 1], latency_weight: 0.1, condition: drift, rounds: 20}\n",
    "source: {kind: file, path: t.csv}\nscore_range: [0, 1]\ncost_per_call: {a: 0.1, b: 1}\nmissing: price\n"
    "rescale_mean_cost: {a: 1e-3}\nreplay: {rhos: auto}\nreference_policy: random\n",
    "source: {kind: sprout, mirror: files}\nprices:\n  x: {input: 1, output: 2.5}\nsynthetic: no\n",
)
#: instead of a value, or anywhere
VALUES = (
    *r"""
    .nan nan inf -inf 1e999 -1 0 1e-400 0x10 1_000 1:30 2020-13-45 yes ~ null '' '\0' "\0" "\ud800" "\e[2J"
    *a [] {} [[]] ../../etc/passwd ~nobody/x.csv /dev/null a|b auto paper file - ' " % @ ` true 1e-3 3
    random severe_shift [a]
    """.split(),
    "9" * 400,
    "!!int abc",
    "!!python/object/apply:os.system [id]",
    "&a x",
    "[1, nan]",
    "{a: b}",
    "x" * 3000,
    "p" * 300 + ".csv",
    "é" * 100,
    "? x",
    "|\n  x\n",
    "\t",
    "[" * 300,
    "{a: " * 30,
    "[0, 0]",
    "[1, 1.0000001]",
    "[a, a]",
)
#: numbers that no field of a pool may hold
NEVER = (".nan", "nan", "inf", "-inf", "1e999", "!!int abc", '"\\0"', '"\\ud800"', '"\\e[2J"', "&a x", "*a")


def prepare() -> None:
    """The shipped pools are read once."""
    list_pools()


def probe(tally, rng, ready) -> None:
    """One changed pool file among sound ones."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ.update(CABS_HOME=folder, CABS_POOLS_DIR=folder)
        os.environ.pop("CABS_DATA_DIR", None)
        rows = "".join(f"p{i},{m},{i % 2},0.0{1 + i % 3}\n" for i in range(12) for m in "ab")
        (home / "t.csv").write_text("prompt,model,score,cost\n" + rows)
        (home / "good.yaml").write_text(SOUND[1])
        text, never = _changed(rng, SOUND[int(rng.integers(len(SOUND)))])
        path = home / "bad.yaml"
        path.write_bytes(text)
        pool_file = tally.tried(lambda: load_pool_file(path), must_fail=f"{text[:300]!r}" if never else "")
        pools, errors = list_pools()
        names = [p.pool.name for p in pools]
        assert "good" in names and "demo" in names, "a bad file hides others"
        assert all(len(str(e)) <= 500 for e in errors), "a long message"
        if pool_file is not None:
            _makes_sense(tally, pool_file)


def _changed(rng, text: str) -> tuple[bytes, bool]:
    """The changed file, and whether it must be refused."""
    how = int(rng.integers(6))
    value = VALUES[int(rng.integers(len(VALUES)))]
    lines = text.splitlines()
    at = int(rng.integers(len(lines)))
    if how == 0:  # the value of a line that is `field: scalar`
        places = [i for i, line in enumerate(lines) if ": " in line and "{" not in line and "[" not in line]
        at = places[int(rng.integers(len(places)))] if places else at
        lines[at] = lines[at].partition(":")[0] + ": " + value
        never = bool(places) and value in NEVER and "title" not in lines[at] and "path" not in lines[at]
        return "\n".join(lines).encode("utf-8"), never or value.startswith(("!!", "&", "*", '"\\'))
    if how == 1:  # another entry in a mapping or list of one line
        lines[at] = lines[at].replace("[", f"[{value}, ", 1).replace("{", f"{{{value}: 1, ", 1)
    elif how == 2:
        lines.insert(at, value if rng.random() < 0.5 else f"{value}: 1")
    elif how == 3:
        lines.insert(at, lines[int(rng.integers(len(lines)))])
    elif how == 4:
        del lines[at]
    data = bytearray("\n".join(lines).encode("utf-8"))
    if how == 5:
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(len(data)))
            data[place : place + int(rng.integers(0, 3))] = bytes(
                rng.integers(0, 256, int(rng.integers(0, 3))).astype("uint8")
            )
    return bytes(data), False


def _makes_sense(tally, pool_file) -> None:
    pool = pool_file.pool
    rhos = pool.replay.rhos
    assert rhos and list(rhos) == sorted(set(rhos)) and all(parse_rho_key(rho_key(r)) == r for r in rhos), (
        rhos
    )
    settings = json.loads(json.dumps(pool.model_dump(mode="json"), allow_nan=False))
    _finite(settings)
    assert len(pool.content_hash()) == 16
    if pool.source.kind == "file":
        outcomes = tally.tried(lambda: load_outcomes(pool_file))
        if outcomes is not None:
            assert len(outcomes.arms) >= 2 and len(outcomes) > 0
    try:
        copy = pool_file.path.with_name("copy.yaml")
        copy.write_text(pool_file.portable_text(), encoding="utf-8")
        assert load_pool_file(copy).pool.name == pool.name, "a copy has another name"
    except PoolError as error:
        assert "source." in str(error), error
    except CabsError as error:
        raise AssertionError(f"a {type(error).__name__} from a pool file: {error}") from None


def _finite(value) -> None:
    if isinstance(value, dict):
        for part in value.values():
            _finite(part)
    elif isinstance(value, list):
        for part in value:
            _finite(part)
    else:
        assert not isinstance(value, float) or math.isfinite(value), value
