"""What a shell completes, what is suggested for a typing error, JSON for scripts, and where modules come
from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from tests_support import cabs

from cabs_core.base.catalog.policies import policies
from cabs_core.base.paths import cabs_home
from cabs_core.data.pools.find import list_pools
from cabs_dagster.cli import main


def completed(*words: str) -> list[str]:
    """What the last word is completed to."""
    shell = ShellComplete(main, {}, "cabs", "_CABS_COMPLETE")
    completions = shell.get_completions(list(words[:-1]), words[-1])
    return [item.value for item in completions]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--pool"),
        ("run",),
        ("plan",),
        ("check", "--pool"),
        ("report", "--pool"),
        ("pool", "show"),
        ("pool", "retire"),
        ("pool", "restore"),
        ("data", "fetch"),
        ("export", "--pool"),
    ],
)
def test_pool_names_are_completed(tiny_pool: Path, words: tuple[str, ...]) -> None:
    assert completed(*words, "ti") == ["tiny"]
    assert {"tiny", "demo"} <= set(completed(*words, ""))


def test_a_pool_is_named_once(tiny_pool: Path) -> None:
    assert cabs("plan", "tiny").output == cabs("plan", "--pool", "tiny").output
    assert "tiny and demo" in cabs("evaluate", "tiny", "--pool", "demo").output
    assert "name a pool" in cabs("run").output


def test_policies_are_completed_one_after_the_other(tiny_pool: Path) -> None:
    assert completed("run", "tiny", "--policies", "") == ["random", "best_single", "lin_ucb"]
    assert completed("run", "--pool", "tiny", "--policies", "random,b") == ["random,best_single"]
    assert completed("run", "tiny", "--policies", "random,r") == []
    assert "cabs_d_linear@literal" in completed("run", "--policies", "cabs_d_linear")


def test_typing_errors_get_a_suggestion(tiny_pool: Path) -> None:
    for words in (
        ["run", "tniy"],
        ["plan", "--pool", "tniy"],
        ["pool", "show", "tniy"],
        ["data", "fetch", "tniy"],
    ):
        done = cabs(*words)
        assert done.exit_code == 2 and "Did you mean 'tiny'?" in done.output, done.output
        assert [line for line in done.stderr.splitlines() if line.startswith("error:") and "'tniy'" in line]


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--policies", "random,lin_uvb", "lin_ucb"),
        ("--policies", "hier_mix", "not among the policies of pool tiny"),
        ("--rho", "123", "123"),
        ("--rho", "high", "no rho of the pool's replay.rhos is high"),
    ],
)
def test_parts_that_a_pool_does_not_have_are_refused(
    tiny_pool: Path, option: str, value: str, text: str
) -> None:
    done = cabs("run", "tiny", option, value)
    assert done.exit_code == 2 and text in done.output, done.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_error_is_seen_where_output_was_left_at_a_full_disk() -> None:
    """As Dagster leaves it, once a step's log file cannot be written."""
    program = """if True:
        import os, sys, click
        from cabs_core.base.errors import CabsError
        from cabs_dagster.cli import main

        @main.command()
        def fills():
            full = os.open("/dev/full", os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                stream.write("of a step")
                os.dup2(full, stream.fileno())
            raise CabsError("the disk is full")

        main(["fills"])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "error: the disk is full" in done.stderr


def test_a_link_that_leads_in_a_circle_is_named(tiny_pool: Path) -> None:
    circle = cabs_home() / "artifacts"
    circle.symlink_to(circle)
    done = cabs("plan", "tiny")
    assert done.exit_code == 2 and str(circle) in done.output and "symbolic links" in done.output, done.output
    assert "Traceback" not in done.output


def test_the_list_of_pools_as_json(tiny_pool: Path) -> None:
    pools = {pool["name"]: pool for pool in json.loads(cabs("pool", "list", "--json").stdout)}
    assert set(pools) == {pool_file.pool.name for pool_file in list_pools()[0]}
    assert pools["tiny"]["policies"] == ["random", "best_single", "lin_ucb"]
    assert pools["tiny"]["rhos"] == [0, 500] and pools["tiny"]["source"] == "synthetic"
    assert pools["demo"]["shipped"] and not pools["tiny"]["shipped"] and not pools["tiny"]["retired"]
    assert pools["tiny"]["path"] == str(tiny_pool)


@pytest.mark.slow
def test_a_module_in_the_current_directory_is_not_imported(tiny_pool: Path, tmp_path: Path) -> None:
    """Whoever runs `cabs` beside a `random.py` of his own must not have it imported."""
    for name in ("random", "json", "torch", "pandas", "dagster", "cabs_dagster"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current directory')\n")
    code = (
        "import sys; from cabs_dagster.cli.runner import job, CommandRunner; import dagster as dg\n"
        "from cabs_dagster.cli import main; before = list(sys.path)\n"
        "try: main(['run', 'tiny', '--policies', 'random', '--no-report'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert sys.path == before, sys.path"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("words", [(), ("pool",), ("data",), ("log",)])
def test_no_description_is_cut_in_the_middle_of_a_sentence(words: tuple[str, ...]) -> None:
    text = " ".join(cabs(*words, "--help").output.split())
    listed = text.partition("Commands: ")[2]
    assert listed and "..." not in listed


def test_policies_are_listed_with_options_and_ranges() -> None:
    text = cabs("policies").output
    assert all(f"{name}" in text for name in policies())
    details = cabs("policies", "lin_ucb").output
    assert "lin_ucb @warm" in details and "alpha: number = 0.4 (>= 0)" in details
    assert "target: string" in details
    rows = {row["name"]: row for row in json.loads(cabs("policies", "--json").output)}
    assert list(rows) == list(policies())
    warm = next(o for o in rows["lin_ucb"]["options"] if o["name"] == "warm")
    assert warm["range"] == ">= 0, <= 1" and warm["presets"] == {"warm": 0.3}
    wrong = cabs("policies", "lin_ubc")
    assert wrong.exit_code == 2 and "Did you mean 'lin_ucb'?" in wrong.output
