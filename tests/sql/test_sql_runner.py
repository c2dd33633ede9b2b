"""The SQL runner: discovery, order, lineage, errors that name a place, tests of every kind, the database."""

import os
import shutil
import textwrap

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from built_marts import build_all, run_model, run_tests
from fake_replays import fake_pool, write_pool
from threadpoolctl import threadpool_limits

from cabs_core.base.errors import ProvenanceError, SqlModelError
from cabs_core.base.hashing import hash_folder
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Recipe
from dbt_like_sql.artifacts import Marts, files_asset, used_sources
from dbt_like_sql.functions import register
from dbt_like_sql.runner import ROOT, get_model, list_models, rebuild_database


def project(tmp_path, schema="", **files):
    """A small SQL project: names with `__` are folder__file."""
    for name, text in files.items():
        folder, _, stem = name.partition("__")
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{stem}.sql").write_text(textwrap.dedent(text).strip() + "\n")
    (tmp_path / "staging").mkdir(exist_ok=True)
    (tmp_path / "staging/schema.yml").write_text(textwrap.dedent(schema))
    (tmp_path / "macros").symlink_to(ROOT / "macros")
    return tmp_path


def test_all_models_are_there_described_and_in_order():
    models = list_models()
    seen = set()
    for model in models:
        assert set(model.depends_on) <= seen, model.name
        seen.add(model.name)
        assert model.description and model.tests, model.name
        assert all(c.description and c.data_type for c in model.columns), model.name
    names = [t.name for m in models for t in m.tests]
    assert len(names) == len(set(names)) and all(n.replace("_", "").isalnum() for n in names)


@pytest.mark.parametrize("name", [m.name for m in list_models()])
def test_model_matches_its_description_and_passes_its_tests(built, name):
    artifacts, _, runs = built
    run, model = runs[name], get_model(name)
    assert [(c.name, c.data_type) for c in model.columns] == run.schema
    assert list(run.column_lineage) == [c for c, _ in run.schema]
    # nothing is missing where every policy was replayed at every rho
    assert (run.rows or 0) > 0 or name == "mart_missing_rhos" or model.materialized == "view"
    failed = [(t.name, t.sample) for t in run_tests(name, artifacts) if not t.passed]
    assert failed == []


def test_column_lineage_reaches_through_views_and_ctes(built):
    _, _, runs = built
    board = runs["mart_policy_leaderboard"].column_lineage
    assert board["aiq"] == [("mart_aiq", "aiq")]
    assert ("mart_utility_by_regime", "utility") in board["utility_low"]
    assert ("replay.trials", "utility") in runs["stg_replay_summary"].column_lineage["utility"]
    curves = runs["mart_regret_curves"].column_lineage["relative_regret"]
    assert curves == [("stg_replay_curves", "cumulative_regret")]
    assert ("paper.published", "value") in runs["mart_paper_comparison"].column_lineage["paper"]


def test_the_columns_behind_a_column_stand_in_one_order_in_every_process(built):
    """sqlglot gives them as sets, whose order differs from process to process."""
    _, _, runs = built
    for name, run in runs.items():
        for column, parents in run.column_lineage.items():
            assert parents == sorted(parents), (name, column)


def test_lineage_is_dropped_when_the_engines_disagree_on_columns(built):
    from dbt_like_sql.lineage import column_lineage

    upstream = {"replay__run": [("pool", "VARCHAR")]}
    assert column_lineage(get_model("stg_pools").compiled, upstream, ["something", "else"]) == {}


def test_running_again_gives_the_same_content(built):
    artifacts, _, runs = built
    for name in ("stg_trial_by_regime", "mart_pairwise_differences", "mart_aiq"):
        assert run_model(name, artifacts).content_hash == runs[name].content_hash


def test_no_replays_at_all(tmp_path):
    """An empty home gives empty marts of the right shape and not an error."""
    runs = build_all(tmp_path / "artifacts")
    for name, run in runs.items():
        assert not run.rows
        declared = get_model(name).columns
        assert [c for c, _ in run.schema] == [c.name for c in declared]
    assert all(t.passed for name in runs for t in run_tests(name, tmp_path / "artifacts"))


def test_half_written_folders_are_not_read(tmp_path):
    write_pool(tmp_path, fake_pool(), n=10, rhos=(0.0,), policies=["random"])
    (tmp_path / "replay/fake/0000/.lin_ucb.123.tmp").mkdir()
    (tmp_path / "replay/fake/0000/.lin_ucb.123.tmp/run.parquet").write_bytes(b"half")
    run_model("stg_pools", tmp_path)
    assert run_model("stg_replay_runs", tmp_path).rows == 1


def test_a_result_from_before_a_column_came_has_it_empty(tmp_path):
    write_pool(tmp_path, fake_pool(), n=10, rhos=(0.0,), policies=["lin_ucb", "random"])
    first, *_ = sorted(tmp_path.glob("replay/*/*/*/trials.parquet"))
    pq.write_table(pq.read_table(first).drop_columns(["switches_per_session"]), first)
    run_model("stg_pools", tmp_path)
    run_model("stg_replay_runs", tmp_path)
    assert run_model("stg_replay_summary", tmp_path).rows > 0


def test_a_damaged_source_file_is_named(tmp_path):
    write_pool(tmp_path, fake_pool(), n=10, rhos=(0.0,), policies=["random"])
    (tmp_path / "replay/fake/0000/random/run.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(SqlModelError, match=r"source replay\.run.*run\.parquet"):
        run_model("stg_replay_runs", tmp_path)


@pytest.mark.parametrize("folder", ["w[v2]", "a*b", "q?x", "o'h", "tuning/exp1", "oracles/exp1"])
def test_the_folder_of_the_artifacts_is_read_letter_by_letter(built, tmp_path, folder):
    """A folder's name is neither a pattern nor a place where a pool's name stands."""
    artifacts, _, runs = built
    copy = shutil.copytree(artifacts, tmp_path / folder / "artifacts")
    (tmp_path / "axb/artifacts").mkdir(parents=True)
    shutil.copytree(artifacts / "replay", tmp_path / "axb/artifacts/replay")
    for name in ("stg_pools", "stg_replay_runs", "mart_tuning", "mart_oracle_quality"):
        assert run_model(name, copy).content_hash == runs[name].content_hash, name


def test_files_that_no_pattern_of_duckdb_finds_are_an_error(tmp_path):
    artifacts = tmp_path / "back\\slash"
    write_pool(artifacts, fake_pool(), n=10, rhos=(0.0,), policies=["random"])
    with pytest.raises(SqlModelError, match=r"source replay\.run: replay/fake/0000/random/run\.parquet is"):
        run_model("stg_pools", artifacts)


def test_upstream_must_have_been_run(tmp_path):
    with pytest.raises(SqlModelError, match=r"mart_utility_by_regime.*run"):
        run_model("mart_presets", tmp_path)


def test_the_database_holds_every_table_and_no_view(built):
    artifacts, _, runs = built
    connection = duckdb.connect(str(rebuild_database(artifacts)), read_only=True)
    tables = {
        r[0]: r[1] for r in connection.execute("SELECT table_name, comment FROM duckdb_tables()").fetchall()
    }
    assert set(tables) == {n for n, r in runs.items() if r.path is not None}
    assert tables["mart_aiq"] == get_model("mart_aiq").description
    rows = connection.execute("SELECT count(*) FROM mart_regret_curves").fetchone()[0]
    connection.close()
    assert rows == runs["mart_regret_curves"].rows
    assert not list((artifacts / "marts").glob(".*tmp*"))


def test_the_last_digits_of_errors_do_not_depend_on_the_number_of_threads():
    values = np.random.default_rng(0).uniform(size=(10, 2000)).tolist()
    with duckdb.connect() as connection:
        register(connection)
        connection.register("given", pa.table({"row": range(10), "values": values}))
        errors = []
        for threads in (1, 2):
            with threadpool_limits(threads):
                error = 'aiq_bootstrap_se("values", "values", "values", "values", 1, 0, 1)'
                errors.append(connection.execute(f"SELECT {error} FROM given ORDER BY row").fetchall())
    assert errors[0] == errors[1]


# ---- projects that are wrong


def test_a_broken_model_names_file_and_line(tmp_path):
    root = project(tmp_path, staging__stg_a="-- one\nSELECT\n  1 AS x,\n  nothing AS y\nFROM (SELECT 1)")
    with pytest.raises(SqlModelError, match=r"stg_a\.sql:4: model stg_a failed.*nothing"):
        run_model("stg_a", tmp_path / "art", root=root)
    assert not list((tmp_path / "art").rglob("*.parquet"))


def test_an_error_while_running_names_the_file(tmp_path):
    root = project(
        tmp_path, staging__stg_a="SELECT CAST(v AS INTEGER) AS x FROM (VALUES ('1'), ('two')) AS t(v)"
    )
    with pytest.raises(SqlModelError, match=r"stg_a\.sql: model stg_a failed.*two"):
        run_model("stg_a", tmp_path / "art", root=root)


def test_a_cycle_is_reported_as_one(tmp_path):
    root = project(
        tmp_path,
        marts__mart_a="SELECT * FROM {{ ref('mart_b') }}",
        marts__mart_b="SELECT * FROM {{ ref('mart_c') }}",
        marts__mart_c="SELECT * FROM {{ ref('mart_a') }}",
    )
    with pytest.raises(SqlModelError, match="cycle") as error:
        list_models(root)
    assert all(f"mart_{x}.sql" in str(error.value) for x in "abc")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 1\nFROM {{ ref('nowhere') }}", r"mart_a\.sql:2: ref\('nowhere'\) names no model"),
        (
            "SELECT 1\n\nFROM {{ source('no', 'table') }}",
            r"mart_a\.sql:3: .* is not understood.*one of schema\.yml",
        ),
        ("{{ wat }}\nSELECT 1", r"mart_a\.sql:1: \{\{ wat \}\} is not understood"),
        ("{{ config(materialized='cube') }} SELECT 1", "expected 'table' or 'view'"),
    ],
)
def test_references_that_do_not_resolve(tmp_path, sql, message):
    with pytest.raises(SqlModelError, match=message):
        list_models(project(tmp_path, marts__mart_a=sql))


def test_a_table_named_directly_is_refused(tmp_path):
    root = project(tmp_path, staging__stg_a="SELECT 1 AS x", marts__mart_b="SELECT x\nFROM stg_a")
    with pytest.raises(SqlModelError, match=r"mart_b\.sql:2: reads 'stg_a' directly"):
        run_model("mart_b", tmp_path / "art", root=root)


def test_staging_may_not_refer_to_marts(tmp_path):
    root = project(
        tmp_path, marts__mart_b="SELECT 1 AS x", staging__stg_a="SELECT x FROM {{ ref('mart_b') }}"
    )
    with pytest.raises(SqlModelError, match=r"staging.*mart"):
        list_models(root)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("models: [{name: ghost}]", "describes model 'ghost', which has no SQL file"),
        (
            "models: [{name: stg_a, data_tests: [fancy]}]",
            "unknown test 'fancy'; expected one of accepted_values",
        ),
        (
            "models: [{name: stg_a, columns: [{name: x, data_tests: [accepted_values]}]}]",
            "test accepted_values with arguments {}: parameter 'values' was not provided",
        ),
        (
            "models: [{name: stg_a, data_tests: [{expression: {arguments: {expresion: x}}}]}]",
            "takes no keyword argument 'expresion'",
        ),
        (
            "models: [{name: stg_a, columns: "
            "[{name: x, data_tests: [{not_null: {config: {severity: fatal}}}]}]}]",
            "Input should be 'error' or 'warn'",
        ),
        ("models: [{name: stg_a, tests: [not_null]}]", r"models\.0\.tests: Extra inputs"),
        ("models: [{name: stg_a", "not plain YAML"),
        ("- a list", "valid dictionary"),
        ("sources: [{name: s, tables: [{name: t}]}]", r"sources\.0\.tables\.0\.columns: Field required"),
        (
            "sources: [{name: s, tables: [{name: t, columns: [{name: x}]}]}]",
            r"source s\.t: external_location is '': expected a table function",
        ),
        ("models: [{name: stg_a, colums: []}]", r"models\.0\.colums: Extra inputs"),
    ],
)
def test_a_wrong_schema_file_is_explained(tmp_path, schema, message):
    with pytest.raises(SqlModelError, match=message):
        list_models(project(tmp_path, schema, staging__stg_a="SELECT 1 AS x"))


def test_unknown_model_lists_the_known_ones(tmp_path):
    with pytest.raises(SqlModelError, match="mart_aiq"):
        run_model("mart_iaq", tmp_path)


SCHEMA = """
models:
  - name: stg_a
    data_tests:
      - expression: {name: x_is_small, arguments: {expression: "x < 3"}, config: {severity: warn}}
      - unique_combination: {arguments: {columns: [x, y]}}
    columns:
      - name: x
        data_tests:
          - not_null
          - unique
          - relationships: {arguments: {to: "ref('stg_b')", field: k}}
          - expression: {arguments: {expression: "> 0"}}
      - {name: y, data_tests: [{accepted_values: {arguments: {values: [a, b]}}}]}
"""
GOOD = "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS t(x, y)"
BAD = "SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (NULL, 'b'), (7, 'c'), (-1, 'b')) AS t(x, y)"


def run_small(tmp_path, sql):
    singular = "-- no big x\nSELECT * FROM {{ ref('stg_a') }} WHERE x > 5"
    root = project(
        tmp_path,
        SCHEMA,
        staging__stg_a=sql,
        staging__stg_b="SELECT unnest([1, 2]) AS k",
        tests__no_big_x=singular,
    )
    build_all(tmp_path / "art", root=root, database=False)
    return {t.name: t for t in run_tests("stg_a", tmp_path / "art", root=root)}


def test_every_kind_of_test_passes_on_good_rows(tmp_path):
    results = run_small(tmp_path, GOOD)
    assert len(results) == 8 and all(t.passed and t.failures == 0 for t in results.values())


def test_every_kind_of_test_fails_on_bad_rows_and_shows_them(tmp_path):
    results = run_small(tmp_path, BAD)
    assert {name: test.failures for name, test in results.items()} == {
        "x_is_small": 1,
        "unique_combination_stg_a": 1,
        "not_null_stg_a_x": 1,
        "unique_stg_a_x": 1,
        "relationships_stg_a_x": 2,
        "expression_stg_a_x": 1,
        "accepted_values_stg_a_y": 1,
        "no_big_x": 1,
    }
    assert results["x_is_small"].severity == "warn" and results["no_big_x"].severity == "error"
    assert results["accepted_values_stg_a_y"].sample == [{"x": 7, "y": "c"}]
    (singular,) = [t for t in get_model("stg_a", tmp_path).tests if t.name == "no_big_x"]
    assert singular.description == "no big x"


def test_a_broken_test_names_its_file(tmp_path):
    root = project(
        tmp_path, staging__stg_a="SELECT 1 AS x", tests__bad="SELECT nothing\nFROM {{ ref('stg_a') }}"
    )
    run_model("stg_a", tmp_path / "art", root=root)
    with pytest.raises(SqlModelError, match=r"bad\.sql.*nothing"):
        run_tests("stg_a", tmp_path / "art", root=root)


def test_a_view_writes_nothing_and_is_inlined(tmp_path):
    root = project(
        tmp_path,
        staging__stg_v="{{ config(materialized='view') }}\nSELECT 41 AS x",
        marts__mart_m="SELECT x + 1 AS y FROM {{ ref('stg_v') }}",
    )
    runs = build_all(tmp_path / "art", root=root)
    assert runs["stg_v"].path is None and runs["mart_m"].rows == 1
    assert runs["mart_m"].column_lineage == {"y": [("stg_v", "x")]}


def test_an_edited_file_is_seen_at_once(tmp_path):
    root = project(tmp_path, staging__stg_a="SELECT 1 AS x")
    assert run_model("stg_a", tmp_path / "art", root=root).schema == [("x", "INTEGER")]
    (root / "staging/stg_a.sql").write_text("SELECT 1 AS other")
    assert run_model("stg_a", tmp_path / "art", root=root).schema == [("other", "INTEGER")]


def test_every_mart_is_in_the_documentation():
    from cabs_core.base.paths import project_root

    text = (project_root() / "docs/results.md").read_text(encoding="utf-8")
    assert [m.name for m in list_models() if m.layer == "marts" and f"`{m.name}`" not in text] == []


def write_artifact(store, parts, **files):
    """An artifact with a record, made of {file name: bytes}."""
    with store.write(parts) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        record = Recipe(parts[0], parts[1], "c", {}, {}).record(hash_folder(folder), {}, seconds=1.0)
        (folder / RECORD_NAME).write_bytes(record.to_bytes())


def test_what_another_run_makes_in_the_meantime_is_not_called_damaged(cabs_home):
    store = ArtifactStore()
    source = next(s for s in used_sources() if s.path.endswith("decisions.parquet"))
    readers = [m for m in list_models() if source.relation in m.sources]
    others = [m for m in list_models() if m.sources and source.relation not in m.sources]
    parts, name = ("router", "p"), source.path.rsplit("/", 1)[1]
    write_artifact(store, parts, **{name: b"one"})
    marts = Marts(store)
    marts.recipe(others[0], {})  # reads the records
    write_artifact(store, parts, **{name: b"two"})
    found = marts.recipe(readers[0], {})
    files = files_asset(source)
    assert found.inputs[files] == Marts(store).recipe(readers[0], {}).inputs[files]

    (store.folder(parts) / name).write_bytes(b"altered")
    with pytest.raises(ProvenanceError, match="record"):
        Marts(store).recipe(readers[0], {})


def test_folders_are_listed_once_for_all_tables_that_have_files_in_them(cabs_home, monkeypatch):
    store = ArtifactStore()
    names = [source.path.rsplit("/", 1)[1] for source in used_sources() if source.path.startswith("replay/")]
    assert len(names) > 1
    write_artifact(store, ("replay", "p", "0300", "random"), **dict.fromkeys(names, b"data"))
    marts = Marts(store)
    listed = []
    scandir = os.scandir

    def counting(folder="."):
        listed.append(os.fspath(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counting)
    versions = {files_asset(source): marts.files_version(files_asset(source)) for source in used_sources()}
    artifacts = [folder for folder in listed if folder.startswith(str(store.root))]
    assert len(versions) == 3 and any(folder.endswith("0300/random") for folder in artifacts)
    assert len(artifacts) == len(set(artifacts))


def test_models_and_their_tests_share_one_connection(cabs_home, monkeypatch):
    connect = duckdb.connect
    opened = []

    def counting(*arguments, **options):
        opened.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(duckdb, "connect", counting)
    marts = Marts(ArtifactStore())
    with marts.session() as session:
        made = [marts.run(get_model(name), session) for name in ("stg_pools", "stg_replay_runs")]
    assert all(one.record.summary["_tests"] for one in made)
    assert len(opened) == 1
