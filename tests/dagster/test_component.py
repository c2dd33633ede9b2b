"""The chain in a code location of another project (`CabsPools`), and `dg` commands in this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from tests_support import TINY

from cabs_core.base.errors import CabsError
from cabs_core.data.pools.find import find_pool
from cabs_dagster.components import CabsPools

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


def call(*words: object, cwd: Path, path: Path, **variables: str) -> str:
    settings = {k: v for k, v in os.environ.items() if not k.startswith("CABS_")}
    settings["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", str(ROOT))])
    settings["DAGSTER_HOME"] = str(cwd)
    settings |= variables
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=settings, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


#: prints as JSON what the code location of a team holds, and what a run of two of its assets made
RUN = """
import json, sys

import dagster as dg
from team.definitions import defs

found = defs()

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster import partitions
from cabs_dagster.names import Location, key

name = sys.argv[2] if len(sys.argv) > 2 else ""
places = found.resources[f"{name}_cabs" if name else "cabs"].places
location = Location(name, tuple(filter(None, [name])), places=places)
with dg.DagsterInstance.local_temp(sys.argv[1]) as instance, location.active():
    partitions.register(instance, ArtifactStore())
    job = dg.define_asset_job("two", dg.AssetSelection.assets(key("outcomes"), key("splits")))
    job = dg.Definitions.merge(found, dg.Definitions(jobs=[job])).resolve_job_def("two")
    done = job.execute_in_process(instance=instance, partition_key="tiny")
    made = sorted(e.asset_key.to_user_string() for e in done.get_asset_materialization_events())
    names = ("pools", "rhos", "first_pools", "second_pools")
    sets = {name: list(instance.get_dynamic_partitions(name)) for name in names}
    report = key("report").to_user_string()
specs = {spec.key.to_user_string(): spec for spec in found.resolve_all_asset_specs()}
acting = [*found.jobs, *found.schedules, *found.sensors]
location = {
    "assets": {name: [dep.asset_key.to_user_string() for dep in spec.deps] for name, spec in specs.items()},
    "names": [one.name for one in acting],
    "owners": list(specs[report].owners),
    "zones": sorted({schedule.execution_timezone for schedule in found.schedules}),
    "made": made,
    "sets": sets,
}
print(json.dumps(location))
"""


def location_of(folder: Path, instance: Path, *name: str) -> dict:
    """What `RUN` prints of a team's project; name: of the component, if it has one."""
    printed = call(sys.executable, "-c", RUN, instance, *name, cwd=folder, path=folder / "src")
    return json.loads(printed[printed.index('{"assets"') :].splitlines()[0])


def test_a_team_mounts_the_chain_in_its_own_code_location(tmp_path: Path) -> None:
    folder = project(tmp_path / "team")
    call(DG, "check", "yaml", cwd=folder, path=folder / "src")
    (tmp_path / "instance").mkdir()
    location = location_of(folder, tmp_path / "instance")
    assert {"leaderboard", "deployed_router", "replay", "outcomes"} <= location["assets"].keys()
    assert location["assets"]["newsletter"] == ["leaderboard"]
    assert location["made"] == ["outcomes", "splits"]
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


def test_two_of_them_share_an_instance_beside_assets_and_resources_of_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "instance").mkdir()
    for name in ("first", "second"):
        more = f"pools: pools\n  home: ../../../../home\n  name: {name}\n"
        more += f"  timezone: Europe/Berlin\n  owners: [team:{name}]"
        folder = project(tmp_path / name, more)
        (folder / "src" / "team" / "defs" / "mine.py").write_text(OWN.replace("NAME", name))
        location = location_of(folder, tmp_path / "instance", name)
        assets = {"report", "answers", "outcomes", f"{name}/report", f"{name}/marts/mart_aiq"}
        assert assets <= location["assets"].keys()
        acting = {f"{name}_{job}" for job in ("prepare_pool", "weekly_rerun", "alerts", "pool_chain")}
        assert {*acting, "alerts"} <= set(location["names"])
        assert location["made"] == [f"{name}/outcomes", f"{name}/splits"]
        assert (location["owners"], location["zones"]) == ([f"team:{name}"], ["Europe/Berlin"])
    sets = {"pools": [], "rhos": [], "first_pools": ["tiny"], "second_pools": ["tiny"]}
    assert location["sets"] == sets


#: prints as JSON what the sensors of two components register, and what a run of each made
BOTH = """
import json, sys

import dagster as dg
from team.definitions import defs

found = defs()
said = {}
with dg.DagsterInstance.local_temp(sys.argv[1]) as instance:
    for name in ("first", "second"):
        sensor = found.get_sensor_def(f"{name}_partitions_of_pools")
        sensor.evaluate_tick(dg.build_sensor_context(instance=instance, definitions=found))
        said[name] = list(instance.get_dynamic_partitions(f"{name}_pools"))
    for name in ("first", "second"):
        job = found.resolve_job_def(f"{name}_prepare_pool")
        keys = [dg.AssetKey([name, asset]) for asset in ("outcomes", "splits")]
        done = job.execute_in_process(instance=instance, partition_key="tiny", asset_selection=keys)
        (event,) = done.asset_materializations_for_node(f"{name}__splits")
        said[f"{name} splits"] = event.metadata["dagster/row_count"].value
print("BOTH " + json.dumps(said))
"""


def test_two_of_them_work_in_one_code_location_with_pools_and_homes_of_their_own(tmp_path: Path) -> None:
    folder = project(tmp_path / "team", "pools: pools\n  home: ../../../../first\n  name: first")
    second = folder / "src" / "team" / "defs" / "second"
    (second / "pools").mkdir(parents=True)
    (second / "pools" / "tiny.yaml").write_text(TINY.replace("queries: 240", "queries: 300"))
    (second / "pools" / "other.yaml").write_text(TINY.replace("name: tiny", "name: other"))
    (second / "defs.yaml").write_text(
        "type: cabs_dagster.components.CabsPools\nattributes:\n"
        "  pools: pools\n  home: '{{ env.SECOND_HOME }}'\n  name: second\n  owners: [team:second]\n"
    )
    (tmp_path / "instance").mkdir()
    printed = call(
        *(sys.executable, "-c", BOTH, tmp_path / "instance"),
        cwd=folder,
        path=folder / "src",
        SECOND_HOME=str(folder / "second"),
    )
    said = json.loads(printed[printed.index("BOTH ") + 5 :].splitlines()[0])
    assert said == {
        "first": ["tiny"],
        "second": ["other", "tiny"],
        "first splits": 240,
        "second splits": 300,
    }
    for name in ("first", "second"):
        assert (folder / name / "artifacts" / "splits" / "tiny" / "splits.parquet").is_file()


#: an asset of a team beside that of docs/operations.md
READS = """
@dg.asset(
    ins={"table": dg.AssetIn(key=["routing", "outcomes"]), "rounds": dg.AssetIn(key=["routing", "replay"])},
    partitions_def=dg.DynamicPartitionsDefinition(name="routing_pools"),
)
def seen(table: pd.DataFrame, rounds: pd.DataFrame) -> dg.MaterializeResult:
    of_table = sorted(set(table["model"]))
    return dg.MaterializeResult(
        metadata={
            "models": of_table,
            "prompts": table["prompt"].nunique(),
            "cells": len(table),
            "rhos": sorted(set(rounds["rho"])),
            "policies": sorted(set(rounds["policy"])),
        }
    )
"""

#: prints as JSON what a team's assets read of the tables of a finished home
READ = """
import json, sys
from pathlib import Path

import dagster as dg
from team.definitions import defs

found = defs()

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster import partitions
from cabs_dagster.names import Location

said = {}
location = Location("routing", ("routing",), places=found.resources["routing_cabs"].places)
with dg.DagsterInstance.local_temp(sys.argv[1]) as instance, location.active():
    partitions.register(instance, ArtifactStore())
    for name, partition in (("best", None), ("seen", "tiny")):
        job = dg.define_asset_job(f"{name}_job", dg.AssetSelection.assets(name))
        job = dg.Definitions.merge(found, dg.Definitions(jobs=[job])).resolve_job_def(f"{name}_job")
        done = job.execute_in_process(instance=instance, partition_key=partition)
        (event,) = done.asset_materializations_for_node(name)
        said[name] = {key: value.value for key, value in event.metadata.items() if "/" not in key}
print("READ " + json.dumps(said))
"""


def test_a_teams_assets_read_marts_outcomes_and_replays_as_data_frames(ran: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "team", f"pools: {ran}/pools\n  home: {ran}\n  name: routing")
    (of_page,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/operations.md").read_text("utf-8"), re.S)
    (folder / "src" / "team" / "defs" / "mine.py").write_text(of_page + READS)
    (tmp_path / "instance").mkdir()
    printed = call(sys.executable, "-c", READ, tmp_path / "instance", cwd=folder, path=folder / "src")
    said = json.loads(printed[printed.index("READ ") + 5 :].splitlines()[0])
    policies = sorted(find_pool("tiny").pool.policies)
    assert said["best"]["policies"] == policies and said["best"]["rows"] == len(policies)
    seen = said["seen"]
    assert seen["policies"] == policies and seen["rhos"] == [0.0, 500.0]
    assert seen["cells"] == 240 * len(seen["models"]) and seen["prompts"] > 200


def test_a_partition_of_a_new_pool_can_be_launched_in_a_fresh_instance(tmp_path: Path) -> None:
    folder = project(tmp_path / "team")
    call(DG, "launch", "--assets", "outcomes", "--partition", "tiny", cwd=folder, path=folder / "src")
    assert (folder / "home" / "artifacts" / "outcomes" / "tiny" / "outcomes.parquet").is_file()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CabsError, match=r"`pools` is 'gone'.*folder"):
        CabsPools(pools="gone").build_defs(SimpleNamespace(path=tmp_path))


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
    listed = call(DG, "list", "defs", "--json", cwd=tmp_path, path=path)
    assert '"asset_key": "mine"' in listed and '"asset_key": "leaderboard"' in listed


def test_component_types_are_looked_for_only_if_somebody_added_a_definition(
    tmp_path: Path, monkeypatch
) -> None:
    """The look imports the component types of all installed packages, in every process of a run."""
    from cabs_dagster.definitions import scaffolded_definitions

    package = tmp_path / "package"
    (package / "defs").mkdir(parents=True)
    (package / "defs" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").touch()
    looked_in = []

    def load(*, path_within_project: Path) -> dg.Definitions:
        looked_in.append(path_within_project)
        return dg.Definitions()

    monkeypatch.setattr(dg, "load_from_defs_folder", load)
    scaffolded_definitions(package)
    assert looked_in == []
    (package / "defs" / "mine.py").touch()
    scaffolded_definitions(package)
    assert looked_in == [package]
