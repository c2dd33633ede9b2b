"""The chain in a code location of another project (`CabsPools`), and `dg` commands in this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests_support import TINY

ROOT = Path(__file__).parents[2]
DG = Path(sys.executable).with_name("dg")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DG.is_file(), reason="needs dagster-dg-cli, of the extra dev"),
]
_WARNINGS = ["project_and_activated_venv_mismatch", "missing_dg_plugin_module_in_manifest"]
QUIET = f"[tool.dg.cli]\nsuppress_warnings = {json.dumps(_WARNINGS)}\n"


def project(folder: Path, component: str = "pools: pools\n  home: ../../../../home") -> Path:
    """A `dg` project of a team, with an asset of its own."""
    defs = folder / "src" / "team" / "defs"
    (defs / "routing" / "pools").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "team"\nversion = "0.1"\n[tool.dg]\ndirectory_type = "project"\n'
        + QUIET
        + '[tool.dg.project]\nroot_module = "team"\nregistry_modules = ["cabs_dagster.components"]\n'
    )
    (defs.parent / "__init__.py").touch()
    (defs.parent / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n\n@dg.definitions\ndef defs():\n"
        "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (defs / "mine.py").write_text(
        'import dagster as dg\n\n\n@dg.asset(deps=["leaderboard"])\ndef newsletter() -> None: ...\n'
    )
    (defs / "routing" / "pools" / "tiny.yaml").write_text(TINY)
    (defs / "routing" / "defs.yaml").write_text(
        f"type: cabs_dagster.components.CabsPools\nattributes:\n  {component}\n"
    )
    return folder


def call(*words: object, cwd: Path, path: Path, fails: bool = False) -> str:
    settings = {k: v for k, v in os.environ.items() if not k.startswith("CABS_")}
    settings["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", str(ROOT))])
    settings["DAGSTER_HOME"] = str(cwd)
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=settings, capture_output=True, text=True, timeout=400
    )
    assert (done.returncode != 0) == fails, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def listed(said: str) -> dict[str, dict]:
    """{key: asset} of `dg list defs --json`, whose JSON stands among messages."""
    found, _ = json.JSONDecoder().raw_decode(said, said.index('{\n    "assets"'))
    return {asset["asset_key"]: asset for asset in found["assets"]}


RUN = """
import sys

import dagster as dg
from team.definitions import defs

found = defs()

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster import partitions
from cabs_dagster.names import key

with dg.DagsterInstance.local_temp(sys.argv[1]) as instance:
    partitions.register(instance, ArtifactStore())
    job = dg.define_asset_job("two", dg.AssetSelection.assets(key("outcomes"), key("splits")))
    job = dg.Definitions.merge(found, dg.Definitions(jobs=[job])).resolve_job_def("two")
    done = job.execute_in_process(instance=instance, partition_key="tiny")
    print("made", sorted(e.asset_key.to_user_string() for e in done.get_asset_materialization_events()))
    names = ("pools", "rhos", "first_pools", "second_pools")
    sets = {name: list(instance.get_dynamic_partitions(name)) for name in names}
    print("sets", sets)
    (mine,) = (spec for spec in found.resolve_all_asset_specs() if spec.key == key("report"))
    print("owners", mine.owners, {schedule.execution_timezone for schedule in found.schedules})
"""


@pytest.mark.slow
def test_a_team_mounts_the_chain_in_its_own_code_location(tmp_path: Path) -> None:
    folder = project(tmp_path / "team")
    for words in (("check", "yaml"), ("check", "defs"), ("check", "toml")):
        assert "success" in (said := call(DG, *words, cwd=folder, path=folder / "src")) or "valid" in said
    said = call(DG, "list", "defs", "--json", cwd=folder, path=folder / "src")
    names = listed(said)
    assert {"newsletter", "leaderboard", "deployed_router", "replay", "outcomes"} <= names.keys()
    assert "leaderboard" in json.dumps(names["newsletter"])
    assert "CabsPools" in call(DG, "list", "components", cwd=folder, path=folder / "src")
    (tmp_path / "instance").mkdir()
    said = call(sys.executable, "-c", RUN, tmp_path / "instance", cwd=folder, path=folder / "src")
    assert "made ['outcomes', 'splits']" in said
    assert (folder / "home" / "artifacts" / "splits" / "tiny" / "splits.parquet").is_file()


OWN = """
import dagster as dg


@dg.asset
def report() -> None: ...


@dg.asset
def answers() -> None: ...


@dg.asset(deps=[["NAME", "leaderboard"]])
def outcomes() -> None: ...


@dg.sensor(name="alerts", target="report")
def alerts(context): ...


@dg.definitions
def more():
    ours = {"alerts": "ours", "cabs": "ours"}
    return dg.Definitions(assets=[report, answers, outcomes], sensors=[alerts], resources=ours)
"""


@pytest.mark.slow
def test_two_of_them_share_an_instance_beside_assets_and_resources_of_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "instance").mkdir()
    for name in ("first", "second"):
        more = f"pools: pools\n  home: ../../../../home\n  name: {name}\n"
        more += f"  timezone: Europe/Berlin\n  owners: [team:{name}]"
        folder = project(tmp_path / name, more)
        (folder / "src" / "team" / "defs" / "mine.py").write_text(OWN.replace("NAME", name))
        said = call(DG, "list", "defs", "--json", cwd=folder, path=folder / "src")
        assets = listed(said)
        assert {"report", "answers", "outcomes", f"{name}/report", f"{name}/marts/mart_aiq"} <= assets.keys()
        assert all(
            f'"{name}_{job}"' in said for job in ("prepare_pool", "weekly_rerun", "alerts", "pool_chain")
        )
        said = call(sys.executable, "-c", RUN, tmp_path / "instance", cwd=folder, path=folder / "src")
        assert f"made ['{name}/outcomes', '{name}/splits']" in said
        assert f"owners ['team:{name}'] {{'Europe/Berlin'}}" in said
    assert "'pools': [], 'rhos': [], 'first_pools': ['tiny'], 'second_pools': ['tiny']" in said


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    folder = project(tmp_path / "team", "pools: gone")
    said = call(DG, "check", "defs", cwd=folder, path=folder / "src", fails=True)
    assert "is no folder" in said and "gone" in said


@pytest.mark.slow
def test_scaffolding_works_in_this_project(tmp_path: Path) -> None:
    for name in ("cabs_core", "cabs_server", "cabs_dagster", "assets", "dbt_like_sql"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = text.replace("[tool.dg.project]", QUIET + "[tool.dg.project]")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "cabs_assets").symlink_to(tmp_path / "assets")
    path = Path(f"{tmp_path}{os.pathsep}{tmp_path / 'links'}")
    call(DG, "scaffold", "defs", "dagster.asset", "mine.py", cwd=tmp_path, path=path)
    assert (tmp_path / "cabs_dagster" / "defs" / "mine.py").is_file()
    said = call(DG, "list", "defs", "--json", cwd=tmp_path, path=path)
    assert {"mine", "leaderboard"} <= listed(said).keys()
