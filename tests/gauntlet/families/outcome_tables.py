"""Outcome tables in every format with a cell, a column, the file or its bytes changed: read rightly, or one
DataError."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.data.outcomes import Outcomes, load_outcomes
from cabs_core.data.pools.find import load_pool_file

COUNT, QUICK = 6000, 150

FORMATS = (".csv", ".parquet", ".jsonl")
COLUMNS = "query_id prompt task model score cost n_input_tokens n_output_tokens latency".split()
NUMBERS = COLUMNS[4:]
#: cells that no column of numbers may hold
NO_NUMBERS = (
    *"inf -inf Infinity 1e999 0,1 1,000.5 87% €1 1_0 0x1 ٣ =1+1 small".split(),
    "x" * 600,
    *(-1, 1e300, -1e300, 10**400, float("inf")),
    *(date(2024, 1, 1), pd.Timestamp("2024-01-01"), timedelta(seconds=3), time(1, 2)),
    *(b"bytes", [1, 2], {"a": 1}, ["x"]),
)
#: those, and cells that may be right somewhere
CELLS = (
    *NO_NUMBERS,
    *(None, "", " ", 0, 1, 2, 100, True, False, float("nan"), Decimal("0.25")),
    *"nan NaN 1e-999 true FALSE $0.1 é \" ' , ; 0.5 .5 1e-3".split(),
    *("a\0b", "a\x1b[2J", "\ud800", "a\nb", "\ufeff"),
)


def table(rng) -> pd.DataFrame:
    """Twelve queries x three models, sound."""
    n, models = 12, ("small", "large", "odd/../name")
    return pd.DataFrame(
        [
            {
                "query_id": f"q{i}",
                "prompt": f"Prompt {i}, of {n}",
                "task": "ab"[i % 2],
                "model": m,
                "score": float(rng.integers(0, 5)) / 4,
                "cost": float(rng.gamma(2, 1e-3)),
                "n_input_tokens": 10 + i,
                "n_output_tokens": 5 * (j + 1),
                "latency": 0.1 * (j + 1),
            }
            for i in range(n)
            for j, m in enumerate(models)
        ]
    )


def probe(tally, rng, ready) -> None:
    """One changed table."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["CABS_HOME"] = folder
        os.environ.pop("CABS_DATA_DIR", None)
        suffix = FORMATS[int(rng.integers(3))]
        frame = table(rng)
        changed, wrong = _changed(rng, frame)
        path = home / f"t{suffix}"
        if not _write(rng, changed, path):
            return  # the format cannot hold it
        if wrong is None:  # nothing was changed in the frame, so the file is
            _damage(rng, path)
        text = (
            f"source: {{kind: file, path: t{suffix}, columns: {{latency: latency}}}}\nreplay: {{rhos: [0]}}\n"
        )
        (home / "p.yaml").write_text(text + ("missing: error\n" if rng.random() < 0.2 else ""))
        pool = load_pool_file(home / "p.yaml")
        outcomes = tally.tried(lambda: load_outcomes(pool), must_fail=wrong or "")
        if outcomes is not None:
            _makes_sense(outcomes, None if _replaced(changed, frame) else frame, home)


def _changed(rng, frame: pd.DataFrame) -> tuple[pd.DataFrame, str | None]:
    """(table, why it must be refused or ''); None: the table is as it was."""
    column = COLUMNS[int(rng.integers(len(COLUMNS)))]
    value = CELLS[int(rng.integers(len(CELLS)))]
    how = int(rng.integers(7))
    if how == 0:
        return frame, None
    if how in (1, 2, 3):
        changed = frame.astype(object)
        rows = [int(rng.integers(len(frame)))] if how < 3 else range(len(frame))
        for row in rows:
            changed.at[row, column] = value
        wrong = column in NUMBERS and any(
            value is bad or (type(value) is type(bad) and value == bad) for bad in NO_NUMBERS
        )
        return changed, f"{column} is {value!r:.60}" if wrong else ""
    if how == 4:
        needed = column in ("prompt", "model", "score", "cost", "latency")
        return frame.drop(columns=column), f"no column {column}" if needed else ""
    if how == 5:
        row = int(rng.integers(len(frame)))
        return pd.concat([frame, frame.iloc[[row]]]), "a pair stands twice"
    if rng.random() < 0.5:
        return frame.set_index(column), ""
    name = str(value)[:50].encode("utf-8", "replace").decode()
    return frame.rename(columns={column: name}), ""


def _replaced(changed: pd.DataFrame, frame: pd.DataFrame) -> bool:
    """Whether a whole column, and not a cell, is another."""
    if list(changed.columns) != list(frame.columns) or len(changed) != len(frame):
        return True
    return any((changed[c].astype(object) != frame[c].astype(object)).sum() > 1 for c in frame.columns)


def _write(rng, frame: pd.DataFrame, path: Path) -> bool:
    try:
        if path.suffix == ".parquet":
            arrays = frame.copy()
            for name in arrays.columns:  # cells of one column have one type there
                if arrays[name].dtype == object and arrays[name].map(type).nunique() > 1:
                    arrays[name] = arrays[name].map(lambda v: None if v is None else str(v))
            data = pa.Table.from_pandas(arrays)
            if rng.random() < 0.2:
                data = data.replace_schema_metadata({b"pandas": rng.bytes(30)})
            pq.write_table(data, path)
        elif path.suffix == ".csv":
            index = any(frame.index.names)
            frame.to_csv(path, index=index, encoding="utf-8", errors="surrogatepass")
        else:
            frame = frame.reset_index() if any(frame.index.names) else frame
            lines = [json.dumps(r, default=str) for r in frame.to_dict("records")]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def _damage(rng, path: Path) -> None:
    data = bytearray(path.read_bytes())
    how = int(rng.integers(7))
    place = int(rng.integers(len(data)))
    if how == 0:
        data[place] ^= 1 << int(rng.integers(8))
    elif how == 1:
        del data[place:]
    elif how == 2:
        data[place : place + 20] = rng.bytes(20)
    elif how == 3:
        data = bytearray(data.replace(b",", b";"))
    elif how == 4:
        data = bytearray(data.decode("utf-8", "replace").encode("utf-16"))
    elif how == 5:
        data = bytearray(b"\n" * 3) + data
    else:
        data += data[place:]
    path.write_bytes(bytes(data))


def _makes_sense(outcomes: Outcomes, frame: pd.DataFrame | None, home: Path) -> None:
    assert len(outcomes.arms) >= 2 and len(outcomes) > 0
    assert ((outcomes.scores >= 0) & (outcomes.scores <= 1)).all()
    assert ((outcomes.costs >= 0) & (outcomes.costs <= 1e6)).all()
    assert outcomes.latencies is None or np.isfinite(outcomes.latencies).all()
    for texts in (outcomes.prompts, outcomes.query_ids.tolist(), outcomes.tasks.tolist(), outcomes.arms):
        assert all(isinstance(t, str) and t.strip() and "\0" not in t and t.encode("utf-8") for t in texts)
    outcomes.save(home / "saved")
    assert Outcomes.load(home / "saved").content_hash() == outcomes.content_hash()
    if frame is None:
        return
    # what stands in the table as it was is read as it was
    known = {
        (q, m): (s, c) for q, m, s, c in frame[["query_id", "model", "score", "cost"]].itertuples(index=False)
    }
    same = [
        (outcomes.scores[i, j], outcomes.costs[i, j]) == known[q, m]
        for i, q in enumerate(outcomes.query_ids.tolist())
        for j, m in enumerate(outcomes.arms)
        if (q, m) in known
    ]
    assert not same or np.mean(same) > 0.6, "most cells are read as something else"
