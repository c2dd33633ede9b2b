"""A figure back to its rows: the SQL of docs/results.md, and the file of SQL that tables and figures name."""

import re

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_replays import fake_problem

from cabs_core.base.paths import project_root
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import load_evidence
from cabs_core.report.made_from import MODELS
from dbt_like_sql.runner import list_models


def test_the_sql_of_the_page_gives_the_figure(pages, tmp_path, monkeypatch):
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
    mart = PoolData("one", artifacts).mart("utility_by_rho")
    shown = mart[(mart["policy"] == "hier_mix") & (mart["rho"] == 300.0)].iloc[0]
    assert quality == pytest.approx(shown["score"], rel=1e-6)
    assert usd == pytest.approx(shown["cost_per_1000_calls"], rel=1e-6)
    assert rounds == 180


def test_lineage_of_every_mart_ends_at_columns_of_the_outcome_table_or_at_no_outcome():
    """What a source's column is made of stands in schema.yml: scores and costs of replays come from
    `outcomes`."""
    from dbt_like_sql.artifacts import used_sources

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
