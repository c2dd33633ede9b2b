"""Tables and commands with the mistakes that people make, through the public commands, and what is then
printed.

    messages = provoked(Path("empty-folder"))        # (heading, mistake, text) of every command

`python -m benchmarks.verdicts --messages FILE` writes them
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import yaml
from click.testing import CliRunner

from cabs_core.router.example import write_example
from cabs_dagster.cli import main

Table = Callable[[pd.DataFrame], pd.DataFrame]
#: what the pool file says of a sound table
SOUND = {
    "source": {
        "kind": "file",
        "path": "table.csv",
        "columns": {"prompt": "question", "score": "correct", "cost": "usd"},
    },
    "encoder": {"name": "tfidf-svd"},
    "oracle": {"kind": "ridge"},
    "replay": {"trials": 2, "answer_value_usd": [0.01, 0.1]},
    "policies": ["best_single", "ridge", "lin_ucb"],
}


def _cell(column: str, value: object, row: int = 41) -> Table:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype(object)
        table.loc[row, column] = value
        return table

    return change


def _whole(column: str, values: Callable[[pd.Series], object]) -> Table:
    return lambda table: table.assign(**{column: values(table[column])})


def _gaps(models: tuple[str, ...], which: Callable[[pd.DataFrame], pd.Series]) -> Table:
    """Without the rows of some models on some questions."""
    return lambda table: table[~(table["model"].isin(models) & which(table))]


#: {mistake: what is done to the sound table of 600 questions and three models}
TABLES: dict[str, Table] = {
    "no mistake": lambda t: t,
    "a column is missing: score": lambda t: t.drop(columns="correct"),
    "a column is missing: prompt": lambda t: t.drop(columns="question"),
    "a column is missing: model": lambda t: t.drop(columns="model"),
    "a column is missing: cost": lambda t: t.drop(columns="usd"),
    "a column has another name": lambda t: t.rename(columns={"correct": "Correct "}),
    "text in the scores": _cell("correct", "B+"),
    "N/A in the scores": _cell("correct", "N/A"),
    "an error message in the scores": _cell("correct", "Error: timeout"),
    "a score out of range": _cell("correct", 7),
    "stars without score_range": _whole("correct", lambda s: 1 + 4 * s),
    "per cent without a sign": _whole("correct", lambda s: 87 * s),
    "a score is empty": _cell("correct", ""),
    "a negative cost": _cell("usd", -0.002),
    "a cost is not a number": _cell("usd", "nan"),
    "a cost is infinite": _cell("usd", "inf"),
    "a cost in euro": _cell("usd", "0,002 €"),
    "a cost with a decimal comma": _cell("usd", "0,002"),
    "all costs are 0": _whole("usd", lambda s: 0 * s),
    "costs are per million": _whole("usd", lambda s: 1e6 * s),
    "a row twice": lambda t: pd.concat([t, t.iloc[[7]]]),
    "one model": lambda t: t[t["model"] == "large"],
    "two questions": lambda t: t.head(6),
    "twenty questions": lambda t: t.head(60),
    "seventy questions": lambda t: t.head(210),
    "no rows": lambda t: t.head(0),
    "an empty prompt": _cell("question", "  "),
    "a model without a name": _cell("model", ""),
    "a model only on other questions": lambda t: t[(t["model"] != "small") | (t.index > 1700)],
    "gaps in a tenth of the rows": lambda t: t[t.index % 10 != 3],
    "gaps in half of the rows": lambda t: t[t.index % 2 != 1],
    "gaps on the hard questions": _gaps(("small",), lambda t: t["question"].str.startswith("Integrate")),
    "every model answers alike": _whole("correct", lambda s: 1),
    "two models with the same scores": lambda t: pd.concat(
        [t, t[t["model"] == "large"].assign(model="large-copy")]
    ),
    "scores of other questions": lambda t: t.assign(correct=[*t["correct"].sample(frac=1, random_state=0)]),
    "questions that repeat": lambda t: t.assign(
        question=[q if i % 9 else q.upper() + "!" for i, q in enumerate(t["question"])]
    ),
}
#: {mistake: what is changed in the pool file}; a dotted name is a place in it
POOLS: dict[str, dict[str, object]] = {
    "a field that does not exist": {"polices": ["ridge"]},
    "a policy that does not exist": {"policies": ["ridg"]},
    "a model that is not in the table": {"models": ["large", "smal"]},
    "an encoder that does not exist": {"encoder": {"name": "mini-lm"}},
    "a column that does not exist": {"source.columns.task": "topic"},
    "the table is elsewhere": {"source.path": "tables/outcomes.csv"},
    "score_range is the wrong way round": {"score_range": [5, 1]},
    "score_range is too wide": {"score_range": [-1000, 1000]},
    "score_range is words": {"score_range": "1-5"},
    "a goal of an unknown model": {"goal": {"quality": 0.95, "of": "gpt-4"}},
    "a goal in per cent": {"goal": {"quality": 95, "of": "large"}},
    "prices for one model only": {
        "prices": {"large": {"input": 1, "output": 2}},
        "source.columns.cost": None,
    },
    "prices without tokens": {"prices": {m: {"input": 1, "output": 2} for m in ("large", "medium", "small")}},
    "a check that does not exist": {"accept": ["all"]},
    "a list where a number belongs": {"replay.trials": [3]},
    "no trials": {"replay.trials": 0},
    "fractions that are not 1": {"split": {"fractions": [0.8, 0.1, 0.2]}},
    "an answer worth nothing": {"replay.answer_value_usd": [0]},
    "a stress condition on a table with gaps": {"missing": "predict", "replay.condition": "corrupted"},
    "a source that does not exist": {"source.kind": "csv"},
    "a wide table that is not wide": {"source.layout": "wide"},
    "missing says something else": {"missing": "ignore"},
}
#: {mistake: the bytes of the file}
FILES: dict[str, Callable[[bytes], bytes]] = {
    "an empty file": lambda b: b"",
    "Windows-1252": lambda b: b.decode().replace("How many", "Combien coûte").encode("cp1252"),
    "UTF-16": lambda b: b.decode().encode("utf-16"),
    "semicolons": lambda b: b.replace(b",", b";"),
    "tabs": lambda b: b.replace(b",", b"\t"),
    "a comma too many": lambda b: b.replace(b"\nName", b"\nPlease, Name", 1),
    "cut in the middle of a quoted text": lambda b: (
        b[: b.index(b"\n") + 1] + b'"never closed,large,1,0.1\n' + b[400:]
    ),
    "an Excel file with the name of a CSV": lambda b: b"PK\x03\x04" + bytes(range(200)) * 20,
    "no header": lambda b: b[b.index(b"\n") + 1 :],
}


def terms(text: str) -> list[str]:
    """Terms of the field in a text that a stranger reads, without what stands in backticks, to be written as
    it is."""
    return re.findall(
        r"\b(?:rhos?|oracles?|regimes?|arms?|propensit\w+|utilit\w+|regret|contexts?)\b",
        re.sub(r"`[^`]*`", "", text),
        re.IGNORECASE,
    )


def pool_text(changes: dict[str, object] | None = None) -> str:
    """The pool file with some places changed; None takes a place away."""
    content = yaml.safe_load(yaml.safe_dump(SOUND))
    for name, value in (changes or {}).items():
        place, *path = name.split(".")[::-1]
        inner = content
        for part in path[::-1]:
            inner = inner.setdefault(part, {})
        inner.pop(place, None)
        if value is not None:
            inner[place] = value
    return str(yaml.safe_dump(content, sort_keys=False))


def cabs(*words: str) -> str:
    """What a command prints on both streams, and its exit code where that is not 0."""
    done = CliRunner().invoke(main, list(words), prog_name="cabs")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output + (f"(exit code {done.exit_code})\n" if done.exit_code else "")


@contextmanager
def _home(folder: Path) -> Iterator[Path]:
    """Inside, the folder is CABS_HOME and nothing else of the environment names one."""
    names = ("CABS_HOME", "DAGSTER_HOME", "CABS_DATA_DIR", "CABS_POOLS_DIR", "CABS_ARTIFACTS")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ |= {"CABS_HOME": str(folder), "DAGSTER_HOME": str(folder / "dagster")}
    try:
        yield folder
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def provoked(folder: Path) -> list[tuple[str, str, str]]:
    """Return (heading, mistake, what was printed) of every mistake."""
    with _home(folder):
        sound = write_example(folder / "sound.csv", 600).read_bytes()
        messages = list(_added(folder, sound))
        messages += [
            ("commands without what they need", " ".join(words), cabs(*words)) for words in _too_early(folder)
        ]
    return messages


def _added(folder: Path, sound: bytes) -> Iterator[tuple[str, str, str]]:
    """Every mistake of a table and of a pool file, by `cabs pool add`."""
    frame = pd.read_csv(folder / "sound.csv")
    table, pool = folder / "table.csv", folder / "my_pool.yaml"

    def added() -> str:
        return cabs("pool", "add", str(pool))

    for missing in ("drop_queries", "predict"):
        pool.write_text(pool_text({"missing": missing}), encoding="utf-8")
        for name, change in TABLES.items():
            if missing == "predict" and not any(word in name for word in ("gaps", "empty", "only on")):
                continue
            change(frame.copy()).to_csv(table, index=False)
            yield f"pool add, missing: {missing}", name, added()
    table.write_bytes(sound)
    for name, changes in POOLS.items():
        pool.write_text(pool_text(changes), encoding="utf-8")
        yield "pool add, the pool file", name, added()
    for name, text in (
        ("not YAML", "source: {kind: file\npolicies: [ridge"),
        ("an empty pool file", ""),
        ("a tab in the pool file", "source:\n\tkind: file\n"),
        ("a pool of a reserved name", "name: ../up\n" + pool_text()),
    ):
        pool.write_text(text, encoding="utf-8")
        yield "pool add, the pool file", name, added()
    pool.write_text(pool_text(), encoding="utf-8")
    for name, damage in FILES.items():
        table.write_bytes(damage(sound))
        yield "pool add, the file", name, added()
    for suffix in (".xlsx", ".json", ".tsv", ".parquet"):
        (folder / f"table{suffix}").write_bytes(sound)
        pool.write_text(pool_text({"source.path": f"table{suffix}"}), encoding="utf-8")
        yield "pool add, the file", f"a CSV called {suffix}", added()
    for path in ("nowhere.yaml", "table.csv", "."):
        yield "pool add, the pool file", f"cabs pool add {path}", cabs("pool", "add", str(folder / path))


def _too_early(folder: Path) -> Iterator[tuple[str, ...]]:
    """Commands for a pool that was not run, for one that does not exist, and with wrong words."""
    (folder / "table.csv").write_bytes((folder / "sound.csv").read_bytes())
    (folder / "my_pool.yaml").write_text(pool_text(), encoding="utf-8")
    yield "pool", "add", str(folder / "my_pool.yaml")
    for name in ("my_pol", "my_pool"):
        for command in ("run", "report", "export", "check", "plan", "deploy", "evaluate"):
            if (name, command) not in (("my_pool", "run"), ("my_pool", "deploy")):
                out = ("--out", str(folder / "router")) if command == "export" else ()
                yield command, "--pool", name, *out
    yield ("report",)
    yield ("run",)
    yield "run", "my_pool", "--rho", "high"
    yield "run", "my_pool", "--rho", "12"
    yield "run", "my_pool", "--policies", "lin_ubc"
    yield "run", "my_pool", "--policies", "hier_mix"
    yield "report", "my_pool", "--goal", "95 %"
    yield "report", "my_pool", "--goal", "quality: 0.95, of: gpt-4"
    yield "route", "--router", str(folder / "router"), "a prompt"
    yield "serve", "--router", str(folder / "router")
    yield "doctor", "--router", str(folder / "router")
    yield "rollback", "--pool", "my_pool"
