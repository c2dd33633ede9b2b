"""Pool files that are made to break something: each is one short error, at once, and concerns no other
pool."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cabs_core.base.errors import CabsError, PoolError
from cabs_core.data.pool_files.plain_yaml import read
from cabs_core.data.pools.find import find_pool, list_pools, load_pool_file

FINE = "source: {kind: synthetic}\n"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")
)

#: name: (text, line that the message names, what it says)
HOSTILE = {
    "integer of 5,000 digits": (FINE + f"tuning_budget: {'9' * 5000}\n", 2, "tuning_budget"),
    "bomb of aliases": (BOMB, 1, "anchor or alias"),
    "a million nested brackets": ("[" * 1_000_000, 1, "brackets are open"),
    "nested dashes": ("- " * 500_000, 1, "12 deep"),
    "too many entries": ("models:\n" + "- a\n" * 30_000, None, "more than 20,000 entries"),
    "long text": (FINE + f"title: {'x' * 100_000}\n", 2, "100,000 characters"),
    "key twice": ("title: a\n" + FINE + "title: b\n", 3, "key 'title' stands twice"),
    "two documents": (FINE + "---\n" + FINE, 2, "second document"),
    "list as a key": (FINE + "? [a]\n: b\n", 2, "as a key"),
    "escape sequence": (FINE + 'title: "\\e[2J"\n', 2, "control character"),
    "half a surrogate": (FINE + 'title: "\\ud800"\n', 2, ""),
    "nan": (FINE + "prices: {a: {input: nan, output: 1}}\n", 2, "prices.a.input is 'nan'. Expected a finite"),
    "infinite rho": (
        FINE + "replay:\n  rhos: [0,\n    inf]\n",
        4,
        "replay.rhos.1 is 'inf'. Expected a finite",
    ),
    "price beyond all prices": (FINE + "cost_per_call: {a: 1e300}\n", 2, "cost_per_call.a"),
    "many unknown fields": (
        FINE + "".join(f"field{i}: 1\n" for i in range(3000)),
        2,
        "and 2997 more problems",
    ),
    "unknown field of 900 letters": (FINE + "k" * 900 + ": 1\n", 2, "unknown field"),
    "long path": (f"source: {{kind: file, path: {'p' * 15_000}.csv}}\n", 1, "source.path"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_short_error_with_its_line(tmp_path: Path, case: str) -> None:
    text, line, expected = HOSTILE[case]
    path = tmp_path / "hostile.yaml"
    path.write_text(text, encoding="utf-8")
    start = time.process_time()
    with pytest.raises(PoolError) as caught:
        load_pool_file(path)
    message = str(caught.value)
    assert time.process_time() - start < 10
    assert len(message) <= 500
    assert str(path) in message and expected in message
    assert "line " in message if line is None else f"line {line}:" in message


@pytest.mark.parametrize(
    "name", ["~nobody-known-here/x.csv", "x" * 300 + ".csv", "/dev/null", "*.csv", "a/" * 450]
)
def test_a_path_that_is_no_file_is_a_pool_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"source: {{kind: file, path: '{name}'}}\nreplay: {{rhos: paper}}\n", encoding="utf-8")
    pool_file = load_pool_file(path)
    with pytest.raises(PoolError, match=r"source\.path") as caught:
        pool_file.table_path()
    assert len(str(caught.value)) <= 500 and str(path) in str(caught.value)


def test_bad_files_leave_the_others_alone(cabs_home: Path) -> None:
    folder = cabs_home / "pools"
    folder.mkdir()
    for name in ("good", "demo"):  # a shipped pool has the second name
        (folder / f"{name}.yaml").write_text(FINE + "title: 2020-13-45\nsynthetic: yes\n")
    (folder / ".hidden.yaml").write_text("nonsense")
    (folder / "notes.txt").write_text("nonsense")
    (folder / "bad.yaml").write_text("source: [")
    (folder / "a folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    (folder / "nowhere.yaml").symlink_to(folder / "not there")
    (folder / "utf16.yaml").write_text(FINE, encoding="utf-16")
    (folder / os.fsdecode(b"\xff.yaml")).write_text("title: [")
    pools, errors = list_pools()
    assert {"good", "demo"} <= {p.pool.name for p in pools}
    assert len(errors) == 8
    for error in errors:
        assert isinstance(error, PoolError) and len(str(error)) <= 500
        str(error).encode("utf-8")
    good = find_pool("good")
    assert (good.pool.title, good.pool.synthetic, good.shipped) == ("2020-13-45", True, False)
    assert find_pool("demo").shipped
    with pytest.raises(PoolError, match="not plain YAML"):
        find_pool("bad")
    with pytest.raises(PoolError, match=r"no pool called 'nope'. Known pools: demo, .*good"):
        find_pool("nope")


def test_a_scalar_is_what_it_looks_like() -> None:
    text = "a: no\nb: 010\nc: 1e-4\nd: 2020-01-01\ne: ~\nf: '~'\ng:\nh: 12:30\n? i\n: [null, 'null', 0x10]\n"
    assert read(text).data == {
        "a": "no",
        "b": "010",
        "c": "1e-4",
        "d": "2020-01-01",
        "e": None,
        "f": "~",
        "g": None,
        "h": "12:30",
        "i": [None, "null", "0x10"],
    }


def test_numbers_are_read_where_the_schema_wants_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "source: {kind: synthetic, queries: '60'}\nrescale_grand_mean_cost: 1e-4\nmodels: [1, 2.0]\n"
    )
    pool = load_pool_file(path).pool
    assert (pool.source.queries, pool.rescale_grand_mean_cost, pool.models) == (60, 1e-4, ("1", "2.0"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modls: [a, b]\n", "modls: unknown field. Did you mean 'models'?"),
        ("prices: {a: {inputs: 1, output: 1}}\n", "prices.a.inputs: unknown field. Did you mean 'input'?"),
        ("rhos: [0]\n", "rhos: unknown field. It belongs to replay.rhos"),
        ("replay: {policies: [random]}\n", "replay.policies: unknown field. It belongs to policies"),
        ("zzzz: 1\n", "zzzz: unknown field. docs/model-pools.md lists"),
        (
            "policies: [random, lin_ubc]\n",
            "line 2: policies: unknown policy 'lin_ubc'. Did you mean 'lin_ucb'?",
        ),
        ("models: [a, [b]]\n", "models.1 is ['b']. Expected a text"),
        ("models: {a: {b: 1}, c: d}\n", "models.a"),
    ],
)
def test_misspelt_fields_and_names_are_guessed(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FINE + text)
    with pytest.raises(PoolError) as caught:
        load_pool_file(path)
    assert expected in str(caught.value) and "line 2: " in str(caught.value)


def test_misspelt_pool_names_are_guessed(cabs_home: Path) -> None:
    with pytest.raises(PoolError, match=r"no pool called 'dmo'\. Did you mean 'demo'\?"):
        find_pool("dmo")


def test_a_copy_of_a_pool_file_means_the_same_pool(tmp_path: Path) -> None:
    """Relative paths become absolute, the name is written out; everything else stays, comments too."""
    (tmp_path / "t.csv").write_text("prompt,model,score,cost\n")
    text = "# Ünser\nsource:\n  kind: file  # a table\n  path: 't.csv' # beside\n"
    text += "title: 2020-13-45\nreplay: {rhos: paper}\n"
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    copied = load_pool_file(path).portable_text()
    assert copied == "name: mine\n" + text.replace("'t.csv'", f'"{tmp_path}/t.csv"')
    path.write_text("name: m\nsource: {kind: sprout, mirror: here/it/is}\n")
    assert (
        load_pool_file(path).portable_text()
        == f'name: m\nsource: {{kind: sprout, mirror: "{tmp_path}/here/it/is"}}\n'
    )


def test_a_copy_of_a_pool_file_reads_the_same_logs_and_scores(tmp_path: Path) -> None:
    """The log of the traffic, its scores, and the scores of a log are files beside the pool file too."""
    for name in ("t.csv", "s.csv"):
        (tmp_path / name).write_text("prompt,model,score,cost\n")
    path = tmp_path / "m.yaml"
    for text, names in (
        ("source: {kind: logs, path: t.csv, scores: s.csv}\n", ("t.csv", "s.csv")),
        ("source: {kind: file, path: t.csv}\nrouter: {log: log.db}\n", ("t.csv", "log.db")),
        (
            "source: {kind: file, path: t.csv}\nrouter: {log: {path: log.db, scores: s.csv}}\n",
            ("t.csv", "log.db", "s.csv"),
        ),
    ):
        path.write_text(text)
        expected = text
        for name in names:
            expected = expected.replace(name, f'"{tmp_path}/{name}"')
        assert load_pool_file(path).portable_text() == f"name: m\n{expected}"


def test_messages_are_bounded_and_harmless() -> None:
    message = str(CabsError("x" * 1_000_000 + "the end"))
    assert len(message) <= CabsError.LONGEST and message.endswith("the end") and " ... " in message
    assert str(PoolError("a\x1b[2Jb\ud800")) == "a\\x1b[2Jb\\ud800"


def test_a_relative_mirror_is_beside_the_pool_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the loader, and for the planner, which hashes its files."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.bin").write_text("x")
    (tmp_path / "mine.yaml").write_text("source: {kind: sprout, mirror: files}\n")
    monkeypatch.chdir("/")
    pool_file = load_pool_file(tmp_path / "mine.yaml")
    assert pool_file.mirror_path() == tmp_path / "files"
    assert list(pool_file.external_files()) == ["mirror/a.bin"]
