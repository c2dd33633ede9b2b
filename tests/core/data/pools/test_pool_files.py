"""Pool files: the shipped ones, a user's own, and everything that can be wrong in one."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import PoolError
from cabs_core.base.paths import safe_name
from cabs_core.data.outcomes import PUBLISHED, load_outcomes, make_splits
from cabs_core.data.pool_files.config import source_class
from cabs_core.data.pool_files.log import LogPool
from cabs_core.data.pool_files.prompts import PromptsPool
from cabs_core.data.pool_files.rhos import PAPER_GRID, grid_for_costs
from cabs_core.data.pool_files.table import TablePool
from cabs_core.data.pools.find import find_pool, list_pools, load_pool_file
from cabs_core.data.validation.overview import overview

MINIMAL = {"source": {"kind": "file", "path": "t.csv"}}


def write(tmp_path: Path, text: str, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


#: tables whose costs the paper's grid does not fit
ON_THEIR_OWN_GRID = ("zeroeval", "paretobandit_k4", "llmdrift", "llmrouter_dcrouter", "simple_evals_ru")


def test_shipped_pools() -> None:
    pools, errors = list_pools()
    assert errors == []
    for pool_file in pools:
        assert pool_file.pool.title and pool_file.pool.description
        assert (pool_file.pool.replay.rhos == PAPER_GRID) == (
            pool_file.pool.name not in ("demo", "demo_tfidf", "llmdrift_june", *ON_THEIR_OWN_GRID)
        )
        assert pool_file.rhos_from == "file", "no shipped pool waits for its table"
    assert [p.pool.name for p in pools if p.pool.synthetic] == ["demo", "demo_tfidf"]


@pytest.mark.parametrize("name", ["demo", "openllm_lb_v2_carrot"])
def test_twins_differ_in_the_encoder_alone(name: str) -> None:
    ours, twin = (find_pool(n).pool.model_dump() for n in (name, f"{name}_tfidf"))
    assert {k for k in ours if ours[k] != twin[k]} == {"name", "title", "encoder"}
    assert twin["encoder"]["name"] == "tfidf-svd"


@pytest.mark.parametrize(
    ("pool", "benchmark"), [("routerbench", "routerbench"), ("sprout", "sprout"), ("openllm_v2", "openllm")]
)
def test_shipped_pools_of_the_paper_name_its_models(pool: str, benchmark: str) -> None:
    shipped = find_pool(pool).pool
    assert shipped.paper_benchmark == benchmark
    assert shipped.models == {row.name: (row.source_name,) for row in PUBLISHED[benchmark]}
    assert shipped.split.kind == ("default" if pool == "sprout" else "random")


def test_rescaled_means_of_the_open_llm_pool_are_the_papers() -> None:
    pool = find_pool("openllm_lb_v2_carrot").pool
    assert pool.rescale_mean_cost == {row.name: row.cost for row in PUBLISHED["openllm"]}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "queries", "models", "dropped"),
    [
        ("openllm_lb_v2_carrot", 17_793, 18, 0),
        ("mmlu_pro_tiger", 10_326, 29, 1706),
        ("routerbench_sub3", 3150, 11, 28),
        ("zeroeval", 2825, 28, 15),
        ("paretobandit_k4", 3559, 4, 0),
        ("llmdrift", 1500, 4, 0),
        ("llmrouter_dcrouter", 6108, 9, 0),
        ("simple_evals_ru", 1208, 20, 13),
    ],
)
def test_shipped_file_pools_load(data_dir: Path, monkeypatch, name, queries, models, dropped) -> None:
    monkeypatch.setenv("CABS_DATA_DIR", str(data_dir))
    pool_file = find_pool(name)
    outcomes = load_outcomes(pool_file)
    assert outcomes.scores.shape == (queries, models)
    assert outcomes.report["queries_dropped"] == dropped
    splits = make_splits(outcomes, pool_file.pool.split)
    assert abs((splits == "test").mean() - 0.2) < 0.02  # prompts of one template go together
    if name == "openllm_lb_v2_carrot":
        for row, mean in zip(PUBLISHED["openllm"], outcomes.costs.mean(axis=0), strict=True):
            assert mean == pytest.approx(row.cost), row.name
    if name == "mmlu_pro_tiger":
        assert outcomes.costs.mean() == pytest.approx(5e-4)
    if name in ON_THEIR_OWN_GRID:
        assert pool_file.pool.replay.rhos == grid_for_costs(outcomes.costs.mean(axis=0))
        # overview raises for a check that would stop a run; three tables are known for what they are warned
        # of
        text = overview(pool_file).text
        warned = {
            "llmdrift": {"alignment_text"},
            "llmrouter_dcrouter": {"duplicates_agree"},
            "simple_evals_ru": {"costs_positive", "input_tokens_in_range"},
        }
        assert f"{queries:,} queries x {models} models" in text
        assert set(re.findall(r"\(check (\w+), does not stop a run\)", text)) == warned.get(name, set())


def test_published_table_against_the_file_beside_the_checkout(data_dir: Path) -> None:
    table = data_dir.parent / "paper" / "tables" / "model_averages.csv"
    if not table.is_file():
        pytest.skip(f"the paper's table is not at {table}")
    with open(table, encoding="utf-8") as handle:
        rows = {(r["dataset"], r["model"]): r for r in csv.DictReader(handle)}
    ours = {(b, r.name): r for b, published in PUBLISHED.items() for r in published}
    assert set(ours) == set(rows)
    for key, row in rows.items():
        assert ours[key].score == float(row["performance"])
        assert ours[key].cost == pytest.approx(float(row["cost_usd"]), rel=1e-12)


FINE = "source: {kind: synthetic}\n"
LOG = "source: {kind: logs, path: log.csv}\n"
BAD_POOLS = {
    "empty": ("", "expected a mapping of fields at the top, found nothing"),
    "list": ("- a\n", "found a list"),
    "python tag": ("!!python/object/apply:os.system ['touch /tmp/x']", "not plain YAML"),
    "no source": ("title: a\n", "source is missing"),
    "unknown kind": ("source: {kind: csv}\n", r"source.kind: expected .*found 'csv'"),
    "a log under a condition": (
        LOG + "replay: {condition: drift}\n",
        "replay.condition: is for a table .*'logs'",
    ),
    "a log with later models": (
        LOG + "models: [a, b]\nlater_models: {a: c}\n",
        "later_models: is for a table; .*'logs'",
    ),
    "a log beside a log": (
        LOG + "router: {log: other.csv}\n",
        "router.log: is for a table or prompts to collect",
    ),
    "a log with query ids": (
        "source: {kind: logs, path: log.csv, columns: {query_id: id}}\n",
        "source.columns.query_id: is for source kind file or collect",
    ),
    "file without path": ("source: {kind: file}\n", "source.path is missing.*name the file to read"),
    "path escape": ("name: ../../etc/passwd\nsource: {kind: synthetic}\n", "cannot be used"),
    "one model": (FINE + "models: [a]\n", "fewer than two models"),
    "model twice": (FINE + "models: [a, a]\n", "names a model more than once"),
    "source twice": (FINE + "models: {a: x, b: x}\n", "maps two names to one model"),
    "unprintable model": (FINE + 'models: ["a", "b\\u2028"]\n', "printable characters"),
    "unknown price": (
        FINE + "models: [a, b]\nprices: {c: {input: 1, output: 1}}\n",
        r"prices names .*\['c'\]",
    ),
    "later unknown model": (FINE + "models: [a, b]\nlater_models: {c: x}\n", r"later_models names .*\['c'\]"),
    "later version without models": (FINE + "later_models: {a: x}\n", "later_models needs models"),
    "negative price": (FINE + "prices: {c: {input: -1, output: 1}}\n", "prices.c.input is .*-1.* equal to 0"),
    "two rescalings": (FINE + "rescale_mean_cost: {a: 1}\nrescale_grand_mean_cost: 1\n", "not both"),
    "fractions": (FINE + "split: {fractions: [0.5, 0.5, 0.5]}\n", "three positive numbers with sum 1"),
    "unknown preset": (FINE + "policies: [cabs_d_linear@best]\n", "has no preset 'best'"),
    "no policy": (FINE + "policies: []\n", "policies is empty"),
    "policy twice": (FINE + "policies: [random, random]\n", "more than once"),
    "negative rho": (FINE + "replay: {rhos: [-1]}\n", "-1 is no rho: expected 0 or a number from 1e-06"),
    "rho twice": (FINE + "replay: {rhos: [0.5, 5e-1]}\n", "a value twice"),
    "rho is text": (FINE + "replay: {rhos: fine}\n", "a list of numbers, `paper` or"),
    "two grids": (FINE + "replay: {rhos: [1], answer_value_usd: [1]}\n", "1 / rho .* so give one"),
    "two prices": (
        FINE + "prices: {a: {input: 1, output: 1}}\ncost_per_call: {a: 1}\n",
        "prices and cost_per_call both name 'a'",
    ),
    "price without prices": (FINE + "missing: price\n", "missing is price, so give prices"),
    "scale of a source with scores": (FINE + "score_range: [0, 100]\n", "for source kinds file and logs"),
    "unknown condition": (
        FINE + "replay: {condition: sabotage}\n",
        "condition: 'sabotage' .*; expected one of",
    ),
    "requests a month twice": (
        FINE + "requests_per_month: 5\ngoal: {budget_per_month: 1, requests_per_month: 6}\n",
        "requests_per_month is 5, but goal says 6: give it once",
    ),
    "collect of a table": (
        FINE + "collect: {upstreams: u.yaml, max_usd: 1, scores: []}\n",
        "collect: is for prompts to collect; source.kind 'synthetic' is a table",
    ),
    "prompts without whom to ask": (
        "source: {kind: collect, path: p.csv}\nmodels: [a, b]\n",
        "collect is missing. Say whom to ask",
    ),
    "prompts without models": (
        "source: {kind: collect, path: p.csv}\ncollect: {upstreams: u.yaml, max_usd: 1, scores: []}\n",
        "models is missing.*name the models to ask",
    ),
    "prices of collected answers": (
        "source: {kind: collect, path: p.csv}\nprices: {a: {input: 1, output: 1}}\n",
        "prices: is for a table or a log",
    ),
    "a generated table with a path": (
        "source: {kind: synthetic, path: t.csv}\n",
        "source.path: is for source kind file or logs or collect; the kind is 'synthetic'",
    ),
    "a table with a seed": (
        "source: {kind: file, path: t.csv, seed: 1}\n",
        "source.seed: is for source kind synthetic; the kind is 'file'",
    ),
    "a strategy of collecting": (
        "source: {kind: collect, path: p.csv}\nmodels: [a, b]\n"
        "collect: {upstreams: u.yaml, max_usd: 1, scores: [{kind: exact, column: c}], strategy: sample}\n",
        "line 3: collect.strategy: was removed: .* write their number, such as sample: 200",
    ),
    "a function as scorer": (
        "source: {kind: collect, path: p.csv}\nmodels: [a, b]\n"
        "collect: {upstreams: u.yaml, max_usd: 1, scores: [{kind: python, function: shutil:rmtree}]}\n",
        "line 3: collect.scores.0: kind python was removed: write a program",
    ),
    "a list of models with a wrong entry": (
        FINE + "models: [a, {b: c}]\n",
        "line 2: models.1 is .* a text.$",
    ),
    "a mapping of models with a wrong entry": (
        FINE + "models: {a: {b: c}}\n",
        "line 2: models.a is .* Expected a list, such as ",
    ),
    "a unit that is none": (
        "source: {kind: logs, path: t.csv, columns: {cost: {path: cost, unit: k}}}\n",
        "source.columns.cost.unit: 'k' is no unit",
    ),
    "a scorer without its column": (
        "source: {kind: collect, path: p.csv}\nmodels: [a, b]\n"
        "collect: {upstreams: u.yaml, max_usd: 1, scores: [{kind: exact}]}\n",
        "line 3: collect.scores.0.column is missing",
    ),
    "two types and a number": (
        "source: {kind: collect, path: p.csv}\nmodels: [a, b]\n"
        "collect: {upstreams: u.yaml, max_usd: -1, scores: 1, limits: []}\n",
        "(?s)collect.max_usd is .*collect.scores is .*collect.limits is .*Expected a mapping",
    ),
    "shift without tasks": (FINE + "replay: {condition: severe_shift}\n", "needs split.test_tasks"),
}


@pytest.mark.parametrize("case", BAD_POOLS)
def test_bad_pool_files(tmp_path: Path, case: str) -> None:
    text, expected = BAD_POOLS[case]
    path = write(tmp_path, text)
    with pytest.raises(PoolError, match=expected) as caught:
        load_pool_file(path)
    assert str(path) in str(caught.value) and "line " in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


def test_unreadable_pool_files(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="does not exist"):
        load_pool_file(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PoolError, match="not plain YAML"):
        load_pool_file(tmp_path / "binary.yaml")
    (tmp_path / "huge.yaml").write_text("# " + "x" * (1 << 22))
    with pytest.raises(PoolError, match="larger than 4 MiB"):
        load_pool_file(tmp_path / "huge.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(PoolError, match="is no file"):
        load_pool_file(tmp_path / "folder.yaml")


def test_every_field_is_documented() -> None:
    """docs/model-pools.md, with docs/no-scores.md for `collect`, names every field of a pool file."""
    docs = Path(__file__).parents[4] / "docs"
    text = "".join((docs / page).read_text("utf-8") for page in ("model-pools.md", "no-scores.md"))

    def fields(model: type[BaseModel]) -> set[str]:
        names = set(model.model_fields)
        for info in model.model_fields.values():
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                names |= fields(info.annotation)
        return names

    models = (TablePool, LogPool, PromptsPool, *map(source_class, sources()))
    known = {name for model in models for name in fields(model)}
    assert {name for name in known if not re.search(rf"[`.]{name}`|\b{name}:", text)} == set()


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 80, "2024"])
def test_names_that_are_safe(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a b", "a|b", "-a", "x" * 81, "a\n", "é", "a..b", None]
)
def test_names_that_are_not(name: object) -> None:
    with pytest.raises(PoolError, match="cannot be used"):
        safe_name(name)  # type: ignore[arg-type]


def test_content_hash_reads_the_named_sections_only() -> None:
    one = TablePool(name="p", **MINIMAL)
    two = one.model_copy(update={"title": "other"})
    assert one.content_hash("source", "models") == two.content_hash("source", "models")
    assert one.content_hash() != two.content_hash()
    three = TablePool(name="p", source={"kind": "file", "path": "u.csv"})
    assert one.content_hash("source") != three.content_hash("source")
