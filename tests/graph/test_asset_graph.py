"""Invariants of the asset graph."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from cabs_assets.marts import VERSIONS, origins_of

from cabs_core.base.errors import CabsError
from cabs_core.pipeline.artifacts import POOL_STAGES
from cabs_dagster.build import build_defs, source_host
from cabs_dagster.executors import passed
from cabs_dagster.instance import template
from cabs_dagster.specs import FRESHNESS, ray_tags
from dbt_like_sql.runner import list_models

ROOT = Path(__file__).resolve().parents[2]
#: What nobody materialises: files that others write.
EXTERNAL = ("pool_file", "versions/")


def check_specs(defs: dg.Definitions) -> dict[str, list[dg.AssetCheckSpec]]:
    """{asset: its checks}, for all assets of a code location."""
    of_asset: dict[str, list[dg.AssetCheckSpec]] = {}
    for definition in defs.assets or []:
        for spec in definition.check_specs if isinstance(definition, dg.AssetsDefinition) else []:
            of_asset.setdefault(spec.asset_key.to_user_string(), []).append(spec)
    return {asset: sorted(checks, key=lambda check: check.name) for asset, checks in of_asset.items()}


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return build_defs()


@pytest.fixture(scope="module")
def specs(defs) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def test_the_picture_of_the_lineage_shows_every_group(specs) -> None:
    picture = (ROOT / "docs" / "lineage.svg").read_text(encoding="utf-8")
    groups = re.findall(r'font-weight="bold">(\w+)</text>', picture)
    assert sorted(groups) == sorted({spec.group_name for spec in specs.values()})


def test_names_that_users_rely_on_stay(defs, specs) -> None:
    """In the UI, in schedules and in gates of others. What is new needs no entry here."""
    stages = (
        "pool_file outcomes splits prompt_embeddings oracles replay_problem tuning router off_policy".split()
    )
    assert {*stages, "replay", "deployed_router", "replay_audit", "report", "leaderboard"} <= set(specs)
    assert {"prepare_pool", "replay_pool", "build_results"} <= {job.name for job in defs.jobs or []}
    stopping = {(asset, c.name) for asset, checks in check_specs(defs).items() for c in checks if c.blocking}
    assert {("outcomes", "valid"), ("splits", "valid"), ("replay", "trace")} <= stopping
    assert all((f"marts/{m.name}", "sql_tests") in stopping for m in list_models() if m.layer == "marts")


def test_every_asset_is_described_grouped_owned_kinded_tagged_and_versioned(specs) -> None:
    for key, spec in specs.items():
        assert spec.description and len(spec.description) > 20, key
        assert spec.group_name and spec.group_name != "default", key
        assert spec.owners and spec.kinds, key
        assert spec.tags.get("cabs/stage"), key
        assert spec.code_version or key.startswith(EXTERNAL), key


def test_every_made_asset_links_to_its_source(specs) -> None:
    for key, spec in specs.items():
        if not key.startswith(EXTERNAL):
            reference, *others = spec.metadata["dagster/code_references"].code_references
            assert Path(reference.file_path).is_file() and reference.line_number, key
            model = key.partition("/")[2]
            sql = model in {m.name for m in list_models()}
            assert len(others) == sql
            assert Path(reference.file_path).name == (
                f"{model}.sql" if sql else Path(reference.file_path).name
            )


def test_columns_of_source_tables_lead_to_outcomes(specs) -> None:
    found = {column: origins_of("replay__trials", column) for column in ("utility", "seconds")}
    origins = {(key.to_user_string(), column) for key, column in found["utility"]}
    assert origins == {("outcomes", "score"), ("outcomes", "cost")} and not found["seconds"]
    known = {column.name for column in specs["outcomes"].metadata["dagster/column_schema"].columns}
    assert {column for _, column in origins} <= known


def test_at_most_five_nodes_only_carry_a_data_version(specs) -> None:
    """They stand in a group of their own, and no mart reads them all."""
    nodes = {key for key, spec in specs.items() if spec.group_name == VERSIONS}
    names = ("replay_files", "stage_files", "pool_files", "report_inputs", "leaderboard_inputs")
    assert nodes == {f"versions/{name}" for name in names}
    read = {dep.asset_key.to_user_string() for dep in specs["marts/mart_aiq"].deps} & nodes
    assert read == {"versions/replay_files", "versions/pool_files"}
    (pool_file,) = specs["versions/pool_files"].deps
    assert pool_file.asset_key.to_user_string() == "pool_file"


def test_links_to_a_code_host_when_one_is_named() -> None:
    source = source_host("https://github.com/someone/cabs-routing/", "v1")
    linked = build_defs(source=source).resolve_all_asset_specs()
    specs = {s.key.to_user_string(): s for s in linked}
    (reference,) = specs["oracles"].metadata["dagster/code_references"].code_references
    assert reference.url.startswith("https://github.com/someone/cabs-routing/tree/v1/assets/oracles.py#L")
    reference, _ = specs["marts/mart_aiq"].metadata["dagster/code_references"].code_references
    assert "/tree/v1/dbt_like_sql/marts/mart_aiq.sql" in reference.url
    with pytest.raises(CabsError, match="source platform"):
        source_host("https://code.example.org/cabs")
    assert source_host("") is None


def test_the_chain_is_connected_from_pool_file_to_report(specs) -> None:
    upstream = {key: {dep.asset_key.to_user_string() for dep in spec.deps} for key, spec in specs.items()}
    reached, queue = set(), ["report", "leaderboard"]
    while queue:
        key = queue.pop()
        if key not in reached:
            reached.add(key)
            queue.extend(upstream[key])
    assert {"pool_file", "replay", *POOL_STAGES} <= reached
    for key, deps in upstream.items():
        assert deps <= set(specs), f"{key} depends on something that is no asset: {deps - set(specs)}"


def test_tables_declare_columns_and_lineage_reaches_real_columns(specs) -> None:
    for key, spec in specs.items():
        if key.split("/")[0] in ("marts", "staging", "outcomes", "splits", "replay"):
            assert spec.metadata["dagster/column_schema"].columns, key
    for source, parents in specs["splits"].metadata["dagster/column_lineage"].deps_by_column.items():
        for parent in parents:
            table = specs[parent.asset_key.to_user_string()].metadata["dagster/column_schema"]
            assert parent.column_name in {c.name for c in table.columns}, source


def test_checks_are_few_described_and_on_the_partitions_of_their_asset(defs, specs) -> None:
    by_asset = check_specs(defs)
    assert {check.asset_key.to_user_string() for checks in by_asset.values() for check in checks} <= set(
        specs
    )
    assert {check.name for check in by_asset["replay"]} == {"trace", "plausible"}
    for asset, checks in by_asset.items():
        assert len(checks) <= 3, asset
        for check in checks:
            assert check.description, (asset, check.name)
            if (
                asset != "replay_audit"
            ):  # a sample, another one each night: its last verdict is the one that counts
                assert check.partitions_def == specs[asset].partitions_def, (asset, check.name)


def test_everything_that_acts_by_itself_is_off_by_default(defs) -> None:
    status = {s.name: s.default_status for s in defs.sensors}
    # the one that is on registers partitions and asks for no run
    assert status.pop("partitions_of_pools") == dg.DefaultSensorStatus.RUNNING
    assert set(status) == {
        "pool_files",
        "next_part",
        "results_after_failure",
        "results_after_cancel",
        "alerts",
    }
    assert {s.name for s in defs.schedules} == {"weekly_rerun", "nightly_audit", "nightly_deploy"}
    assert set(status.values()) == {dg.DefaultSensorStatus.STOPPED}
    assert all(s.default_status == dg.DefaultScheduleStatus.STOPPED for s in defs.schedules)


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_templates_send_no_telemetry_and_retry_runs(name: str) -> None:
    settings = yaml.safe_load(template(name))
    assert settings["telemetry"] == {"enabled": False} and settings["run_retries"]["enabled"] is True


def test_definitions_load_light_and_without_warnings_of_ours() -> None:
    code = (
        "import warnings, sys\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import cabs_dagster.definitions\n"
        "names = 'torch transformers great_expectations ray sklearn duckdb numba pandas'.split()\n"
        "heavy = [m for m in names if m in sys.modules]\n"
        "parts = ('cabs_dagster', 'cabs_assets', '/assets/', 'cabs_core')\n"
        "ours = [str(w.message) for w in caught if any(p in w.filename for p in parts)]\n"
        "print(heavy, ours)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[] []", done.stdout + done.stderr


def test_steps_on_other_nodes_get_places_but_no_credentials(monkeypatch) -> None:
    for name in ("CABS_ARTIFACTS", "AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.setenv(name, "s3://cabs/team")
    names = {word.partition("=")[0] for word in passed()}
    assert {"CABS_ARTIFACTS", "AWS_ENDPOINT_URL"} <= names
    assert not {"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"} & names


def test_steps_on_ray_request_the_gpus_of_the_variable_which_must_be_a_number(monkeypatch) -> None:
    monkeypatch.delenv("CABS_RAY_GPUS", raising=False)
    assert ray_tags() == {}
    monkeypatch.setenv("CABS_RAY_GPUS", "0.5")
    assert ray_tags() == {"dagster-ray/config": '{"num_gpus": 0.5}'}
    monkeypatch.setenv("CABS_RAY_GPUS", "one")
    with pytest.raises(CabsError, match="CABS_RAY_GPUS is 'one'; expected a number"):
        ray_tags()


def test_freshness_of_an_asset_with_partitions_says_what_it_means(specs) -> None:
    """Dagster evaluates a freshness policy for an asset as a whole."""
    fresh = {name for name, spec in specs.items() if spec.freshness_policy and spec.partitions_def}
    assert fresh == {"outcomes", "report"}
    assert all((specs[name].description or "").endswith(FRESHNESS) for name in fresh)
