"""A figure back to its rows: `cabs trace`, the SQL of docs/results.md, and the file of SQL that tables and
figures name."""

import csv
import io
import re
from itertools import product

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fake_replays import SKILL, fake_problem

from cabs_core.base.errors import ResultError
from cabs_core.base.paths import project_root
from cabs_core.pipeline.commands.trace_cli import trace
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import load_evidence
from cabs_core.report.made_from import MODELS
from cabs_core.report.rows import FIGURES, figure_in_mart, figure_of, rows_of
from dbt_like_sql.project import list_models


@pytest.fixture(scope="module")
def traced(pages):
    artifacts, _, _ = pages
    data = PoolData("one", artifacts)
    return data, load_evidence(data)


def test_every_figure_is_the_mean_of_its_rows(traced):
    data, evidence = traced
    assert {policy for policy, _ in evidence.folders} == set(SKILL)
    for policy, rho in product(("random", "oracle_best", "hier_mix"), (0.0, 300.0, 500.0, 900.0)):
        rows = rows_of(evidence, policy, rho)
        assert len(rows) == 180 and rows["observed"].eq(1).all()
        for figure in FIGURES:
            assert figure_of(rows, figure) == pytest.approx(
                figure_in_mart(data, figure, policy, rho), rel=1e-6
            )


def test_rows_hold_what_the_outcome_table_says_of_that_prompt_and_model(traced):
    _, evidence = traced
    rows, problem = rows_of(evidence, "hier_mix", 300.0), fake_problem()
    q = [problem.query_ids.tolist().index(x) for x in rows["query_id"]]
    m = [problem.arms.index(x) for x in rows["model"]]
    assert np.array_equal(rows["score"], problem.scores[q, m]) and np.array_equal(
        rows["cost"], problem.costs[q, m]
    )


def test_what_was_not_replayed_is_named(traced):
    _, evidence = traced
    with pytest.raises(
        ResultError, match=r"hier_mix at rho 7; there are those of hier_mix at rho 0, 300, 500, 900"
    ):
        rows_of(evidence, "hier_mix", 7.0)
    with pytest.raises(ResultError, match=r"no replay of nobody at rho 300; there are those of .*lin_ts"):
        rows_of(evidence, "nobody", 300.0)


def test_the_command_prints_the_rows_and_the_figure_twice(pages, tmp_path, monkeypatch):
    monkeypatch.setenv("CABS_HOME", str(tmp_path))
    monkeypatch.setenv("CABS_POOLS_DIR", str(tmp_path / "pools"))
    (tmp_path / "pools").mkdir()
    pool = "name: one\nsource: {kind: synthetic}\npolicies: [hier_mix, best_single]\n"
    (tmp_path / "pools/one.yaml").write_text(pool)
    (tmp_path / "artifacts").symlink_to(pages[0])
    arguments = ["one", "--policy", "hier_mix", "--rho", "300", "--figure", "cost"]
    done = CliRunner().invoke(trace, arguments)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    mean = 1000 * np.mean([float(row["cost"]) for row in rows])
    again, in_mart = (float(x) for x in re.findall(r": (\d[\d.e-]*)(?: \(USD|$)", done.stderr, re.MULTILINE))
    assert again == pytest.approx(mean, rel=1e-5) and in_mart == pytest.approx(mean, rel=1e-5)
    out = tmp_path / "rows.csv"
    assert CliRunner().invoke(trace, [*arguments, "--out", str(out)]).stdout == ""
    assert out.read_text() == done.stdout


def test_the_sql_of_the_page_gives_the_figure(pages, traced, tmp_path, monkeypatch):
    artifacts, _, _ = pages
    text = (project_root() / "docs/results.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"```sql\n(SELECT avg\(o\.score\).*?)```", text, re.DOTALL)
    assert len(query.strip().splitlines()) == 6
    problem = fake_problem()
    names = [(q, m) for q in problem.query_ids for m in problem.arms]
    table = {
        "query_id": [q for q, _ in names],
        "model": [m for _, m in names],
        "score": problem.scores.ravel(),
        "cost": problem.costs.ravel(),
    }
    (tmp_path / ".cabs").mkdir()
    (tmp_path / ".cabs/artifacts").symlink_to(artifacts)
    query = query.replace("demo/0300/ridge", "one/0300/hier_mix")
    query = query.replace(".cabs/artifacts/outcomes/demo/outcomes.parquet", "outcomes_of_one.parquet")
    pq.write_table(pa.table(table), tmp_path / "outcomes_of_one.parquet")
    monkeypatch.chdir(tmp_path)
    ((quality, usd, rounds),) = duckdb.sql(query).fetchall()
    rows = rows_of(traced[1], "hier_mix", 300.0)
    assert (quality, usd, rounds) == (
        pytest.approx(figure_of(rows, "quality")),
        pytest.approx(figure_of(rows, "cost")),
        180,
    )


def test_lineage_of_every_mart_ends_at_columns_of_the_outcome_table_or_at_no_outcome():
    """What a source's column is made of stands in schema.yml: scores and costs of replays come from
    `outcomes`."""
    from dbt_like_sql.freshness import used_sources

    columns = {f"{s.source}.{s.name}.{c.name}": c.outcomes for s in used_sources() for c in s.columns}
    assert columns["replay.trials.score"] == ("score",) and columns["replay.trials.cost"] == ("cost",)
    assert columns["replay.trials.utility"] == ("score", "cost") and columns["replay.arms.arm"] == ("model",)
    assert columns["catalog.policies.title"] == () and columns["replay.trials.seconds"] == ()
    assert all(c.description for s in used_sources() for c in s.columns)
    assert {m.name for m in list_models()} >= {"stg_replay_rounds"}


def test_every_table_and_figure_names_the_sql_that_it_is_made_from(pages):
    _, report, leaderboard = pages
    models = {model.name for model in list_models()}
    assert {name for names in MODELS.values() for name in names} <= models
    for page in (report.path, leaderboard.path):
        html = page.read_text(encoding="utf-8")
        blocks = re.findall(r'<figure class="[^"]*" id="([\w-]+)"(.*?)</figure>', html, re.DOTALL)
        assert len(blocks) >= 2
        for key, block in blocks:
            files = re.findall(r"<code>(dbt_like_sql/[\w/]+\.sql)</code>", block)
            assert files and all((project_root() / file).is_file() for file in files), key


def test_replays_of_an_earlier_pool_file_are_no_evidence(small):
    """They lie on disk at other rhos and with other trials, and belong to the same problem."""
    evidence = load_evidence(PoolData("earlier", small))
    assert evidence.played("best_single").rhos.tolist() == [300.0, 900.0]
