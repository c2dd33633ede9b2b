"""Invariants of the asset graph, and a snapshot of every asset spec."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from cabs_core.catalog import all_policies, asset_name
from cabs_core.errors import CabsError
from cabs_dagster.build import build_defs
from cabs_dagster.features import USED
from cabs_dagster.stages import POOL_STAGES

ROOT = Path(__file__).resolve().parents[2]
#: What nobody materialises: tables over files, settings of pools, a pool's part of the marts.
EXTERNAL = ("sources/", "settings/", "pool_results")
SNAPSHOT = Path(__file__).with_name("asset_specs.json")


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return build_defs()


@pytest.fixture(scope="module")
def specs(defs) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def summary(spec: dg.AssetSpec) -> dict:
    """What of a spec is a decision; code versions change with every edit and are left out."""
    return {
        "description": spec.description,
        "group": spec.group_name,
        "owners": sorted(spec.owners),
        "kinds": sorted(spec.kinds),
        "tags": {k: v for k, v in sorted(spec.tags.items()) if not k.startswith("dagster/kind")},
        "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
        "partitions": type(spec.partitions_def).__name__ if spec.partitions_def else None,
        "columns": [c.name for c in schema.columns]
        if (schema := spec.metadata.get("dagster/column_schema"))
        else None,
    }


def test_snapshot_of_every_asset_spec(specs) -> None:
    """Run with CABS_UPDATE_SNAPSHOT=1 to accept a change, then look at the diff."""
    found = {key: summary(spec) for key, spec in sorted(specs.items())}
    if os.environ.get("CABS_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    known = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert sorted(found) == sorted(known)
    different = {key: (known[key], found[key]) for key in found if found[key] != known[key]}
    assert not different


def test_every_asset_is_described_grouped_owned_kinded_tagged_and_versioned(specs) -> None:
    for key, spec in specs.items():
        assert spec.description and len(spec.description) > 20, key
        assert spec.group_name and spec.group_name != "default", key
        assert spec.owners and spec.kinds, key
        assert spec.tags.get("cabs/stage"), key
        assert spec.code_version, key


def test_every_made_asset_links_to_its_source(specs) -> None:
    for key, spec in specs.items():
        if not key.startswith(EXTERNAL):
            (reference,) = spec.metadata["dagster/code_references"].code_references
            assert Path(reference.file_path).is_relative_to(ROOT) and reference.line_number, key


def test_links_to_a_code_host_when_one_is_named(monkeypatch) -> None:
    monkeypatch.setenv("CABS_SOURCE_URL", "https://github.com/someone/cabs-routing/")
    monkeypatch.setenv("CABS_SOURCE_BRANCH", "v1")
    specs = {s.key.to_user_string(): s for s in build_defs().resolve_all_asset_specs()}
    (reference,) = specs["oracles"].metadata["dagster/code_references"].code_references
    assert reference.url.startswith("https://github.com/someone/cabs-routing/tree/v1/assets/oracles.py#L")
    monkeypatch.setenv("CABS_SOURCE_URL", "https://code.example.org/cabs")
    with pytest.raises(CabsError, match="CABS_SOURCE_PLATFORM"):
        build_defs()


def test_every_policy_is_an_asset_with_its_own_version(specs) -> None:
    assert {k for k in specs if k.startswith("replay/")} == {
        f"replay/{asset_name(p)}" for p in all_policies()
    }
    assert specs["replay/hier_mix"].code_version != specs["replay/lin_ucb"].code_version


def test_the_chain_is_connected_from_outcomes_to_report(specs) -> None:
    upstream = {key: {dep.asset_key.to_user_string() for dep in spec.deps} for key, spec in specs.items()}
    reached, queue = set(), ["report", "leaderboard"]
    while queue:
        key = queue.pop()
        if key not in reached:
            reached.add(key)
            queue.extend(upstream[key])
    assert {*POOL_STAGES, *(f"replay/{asset_name(p)}" for p in all_policies())} <= reached
    for key, deps in upstream.items():
        assert deps <= set(specs), f"{key} depends on something that is no asset: {deps - set(specs)}"


def test_tables_declare_columns_and_lineage_reaches_real_columns(specs) -> None:
    for key, spec in specs.items():
        if key.split("/")[0] in ("marts", "staging", "sources", "outcomes", "splits"):
            assert spec.metadata["dagster/column_schema"].columns, key
    for source, parents in specs["splits"].metadata["dagster/column_lineage"].deps_by_column.items():
        for parent in parents:
            table = specs[parent.asset_key.to_user_string()].metadata["dagster/column_schema"]
            assert parent.column_name in {c.name for c in table.columns}, source


def test_checks_are_described_and_on_the_partitions_of_their_asset(defs, specs) -> None:
    checks = (
        list(defs.resolve_all_asset_checks_specs()) if hasattr(defs, "resolve_all_asset_checks_specs") else []
    )
    checks = checks or [
        s for a in defs.assets or [] if isinstance(a, dg.AssetsDefinition) for s in a.check_specs
    ]
    assert len(checks) > 100
    by_asset: dict[str, set[str]] = {}
    for check in checks:
        key = check.asset_key.to_user_string()
        by_asset.setdefault(key, set()).add(check.name)
        assert check.description, (key, check.name)
        assert check.partitions_def == specs[key].partitions_def, (key, check.name)
    for policy in all_policies():
        assert by_asset[f"replay/{asset_name(policy)}"] == {"trace", "plausible", "reproducible"}


def test_everything_that_acts_by_itself_is_off_by_default(defs) -> None:
    assert {s.name for s in defs.sensors} == {"pool_files", "alert_on_failure", "alert_on_checks"}
    assert {s.name for s in defs.schedules} == {"weekly_rerun", "nightly_checks"}
    assert all(s.default_status == dg.DefaultSensorStatus.STOPPED for s in defs.sensors)
    assert all(s.default_status == dg.DefaultScheduleStatus.STOPPED for s in defs.schedules)


def test_overrides_replace_parts() -> None:
    assert build_defs(sensors=[], schedules=[]).sensors == []


def test_cabs_core_and_the_sql_project_do_not_know_dagster() -> None:
    for path in [*(ROOT / "cabs_core").rglob("*.py"), *(ROOT / "dbt_like_sql").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            bad = [n for n in names if n.split(".")[0] in ("dagster", "cabs_dagster", "assets")]
            assert not bad, f"{path.relative_to(ROOT)} imports {bad}"


def test_definitions_load_light_and_without_warnings_of_ours() -> None:
    code = (
        "import warnings, sys\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import cabs_dagster.definitions\n"
        "heavy = [m for m in ('torch', 'transformers', 'great_expectations', 'ray', 'sklearn', 'duckdb', 'numba') "
        "if m in sys.modules]\n"
        "ours = [str(w.message) for w in caught if any(p in w.filename for p in ('cabs_dagster', '/assets/', 'cabs_core'))]\n"
        "print(heavy, ours)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[] []", done.stdout


def test_no_superseded_or_deprecated_names_of_dagster_are_used() -> None:
    superseded = ("AutoMaterializePolicy", "SourceAsset", "compute_kind", "build_last_update_freshness_checks",
                  "load_defs", "dagster_ge", "auto_materialize_policy", "non_argument_deps")  # fmt: skip
    for folder in ("assets", "cabs_dagster"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not [name for name in superseded if name in text], path


def test_beta_and_preview_features_are_silenced_in_one_place_only() -> None:
    for folder in ("assets", "cabs_dagster"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if path.name != "features.py":
                assert "PreviewWarning" not in text and "BetaWarning" not in text, path
    assert USED and all(stage in ("beta", "preview") and why for stage, why in USED.values())


@pytest.mark.slow
def test_dg_check_defs_passes_without_secrets(tmp_path: Path) -> None:
    tool = Path(sys.executable).with_name("dg")
    if not tool.is_file():
        pytest.skip("dagster-dg-cli is not installed (extra [dev])")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DAGSTER_HOME": str(tmp_path)}
    begin = time.perf_counter()
    done = subprocess.run(
        [str(tool), "check", "defs"], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
    )
    seconds = time.perf_counter() - begin
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for word in ("Deprecat", "Superse", "PreviewWarning", "BetaWarning"):
        assert word not in output, output
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert seconds < 15 * max(1.0, busy), f"{seconds:.1f} s at load {busy:.1f} a core"
