"""Code versions follow the imports that run, and nothing else: held against what stages import and
execute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests_support import TINY, chain_of, home_with

from cabs_core.base.catalog.log_formats import LOG_FORMATS
from cabs_core.base.catalog.policies import all_policies, split_name
from cabs_core.data.outcomes import Outcomes
from cabs_core.pipeline.artifacts import POOL_STAGES, code_versions, make_artifact, stages
from cabs_core.pipeline.artifacts.code_versions import closure, code_version, expand, module_file

#: tests/core/data/collect does the same for the stages of pools that collect
WATCHED = [stage.name for stage in POOL_STAGES.values() if stage.only != "collect"]
POLICIES = ("random", "ridge", "lin_ucb", "lin_ucb_full", "cabs_c_linear", "hier_mix")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package to follow imports in."""
    root = tmp_path / "small_package"
    for name, text in {
        "__init__.py": "from small_package.b import f\nfrom small_package.heavy import g\n",
        "a.py": "from small_package import f\n\ndef g():\n    import small_package.sub.c\n    return f()\n",
        "b.py": "def f():\n    return 1\n",
        "heavy.py": "def g():\n    return 2\n",
        "typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from small_package.b import f\n",
        "named.py": "TABLE = {'a': 'small_package.a:g'}\n",
        "sub/__init__.py": "",
        "sub/c.py": "X = 2\n",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(code_versions, "PACKAGE", "small_package")
    monkeypatch.setattr(code_versions, "ROOT", root)
    code_versions.module_file.cache_clear()
    yield root
    code_versions.module_file.cache_clear()


def test_imports_are_followed_to_where_a_name_comes_from(package: Path) -> None:
    assert set(closure(["small_package.a"])) == {"small_package.a", "small_package.b", "small_package.sub.c"}


def test_types_and_strings_are_not_imports(package: Path) -> None:
    assert set(closure(["small_package.typed"])) == {"small_package.typed"}
    assert set(closure(["small_package.named"])) == {"small_package.named"}


def test_a_package_can_be_named_whole_and_modules_left_out(package: Path) -> None:
    assert list(expand("small_package.sub.*")) == ["small_package.sub", "small_package.sub.c"]
    assert set(closure(["small_package.a"], stop=["small_package.b"])) == {
        "small_package.a",
        "small_package.sub.c",
    }


def test_comments_docstrings_and_layout_do_not_matter_but_code_does(package: Path) -> None:
    before = code_version(["small_package.a"])
    (package / "b.py").write_text(
        '"""Now documented."""\n\n\ndef f():\n    """One."""\n    # why\n    return (1)\n'
    )
    assert code_version(["small_package.a"]) == before
    (package / "b.py").write_text("def f():\n    return 2\n")
    assert code_version(["small_package.a"]) != before
    assert code_version(["small_package.a"], extra="x") != code_version(["small_package.a"])


def test_a_file_is_parsed_once_by_all_processes(package: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(code_versions, "_KNOWN", tmp_path / "known.json")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "known.json").write_text("{", encoding="utf-8")  # damaged
    versions = []
    for reader in (code_versions._strip_and_yield_imports, None):  # the second process reads no tree
        code_versions._known.cache_clear()
        code_versions._parsed.cache_clear()
        monkeypatch.setattr(code_versions, "_strip_and_yield_imports", reader)
        versions.append(code_version(["small_package.a"]))
    assert versions[0] == versions[1]
    code_versions._known.cache_clear()


def test_a_missing_start_is_an_error(package: Path) -> None:
    with pytest.raises(LookupError, match=r"small_package\.nothing"):
        code_version(["small_package.nothing"])
    with pytest.raises(LookupError, match=r"small_package\.nothing\.\*"):
        code_version(["small_package.a", "small_package.nothing.*"])
    for missing in ("no_such_package", "no_such_package.module", "json.nothing"):
        with pytest.raises(ModuleNotFoundError, match=missing.partition(".")[0]):
            code_version(["small_package.a", missing])
    assert code_version(["small_package.a", "json.decoder"]) != code_version(["small_package.a"])


WATCH = """
import cProfile, json, os, sys, threading
import great_expectations, numba, pandas, scipy.optimize, sklearn.linear_model, torch  # once
from cabs_core.pipeline.artifacts import POOL_STAGES, ArtifactStore, Chain, Options, Target, make_artifact
from cabs_core.data.pools.find import find_pool

chain = Chain(ArtifactStore(), find_pool("tiny"))
targets = {s.name: chain.stage(s.name) for s in POOL_STAGES.values() if s.only != "collect"}
targets |= {f"policy {p}": Target("replay", chain.pool, 500.0, p) for p in chain.pool.policies}
found = {}
for name, target in targets.items():
    read, write = os.pipe()
    if os.fork() == 0:  # each in a process of its own, so that imports are its own
        in_threads, profile = set(), cProfile.Profile()
        def see(frame, event, argument):
            if event == "call":
                in_threads.add(frame.f_code)
        threading.setprofile(see), profile.enable()
        make_artifact(Chain(chain.store, chain.pool_file), target, Options(force=True))
        profile.disable()
        ran = in_threads | {entry.code for entry in profile.getstats() if not isinstance(entry.code, str)}
        ours = [(n, m) for n, m in list(sys.modules.items()) if n.startswith("cabs_core.")]
        modules = {getattr(module, "__file__", None): name for name, module in ours}
        # flag 1 is set for functions; not for modules and classes, whose bodies run when they are imported,
        # as do comprehensions in them; one in a function runs with it
        called = {c.co_filename for c in ran if c.co_flags & 1 and not c.co_name.endswith(("comp>", "expr>"))}
        executed = [name for file, name in modules.items() if file in called]
        seen = {"executed": sorted(executed), "imported": sorted(modules.values())}
        os.write(write, json.dumps(seen).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found[name] = json.loads(pipe.read() or b"{}")
    os.wait()
print(json.dumps(found))
"""
#: What a stage's version leaves out although it runs: making itself, and what `COVERED` says.
OUTSIDE = (
    "cabs_core.pipeline.artifacts",
    "cabs_core.base.hashing",
    "cabs_core.base.versions",
    "cabs_core.data.pools.registry",
    "cabs_core.data.pool_files.rhos",
    "cabs_core.data.outcomes.published",  # reads its table when it is imported; see the last test
    "cabs_core.data.endpoints.person_text",  # makes its default rules when it is imported
    *(module.removesuffix(".*") for module in stages.COVERED),
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """{stage or "policy P": {"executed", "imported": modules}} of a small pool, each made in a process of its
    own."""
    home = tmp_path_factory.mktemp("watched")
    pool = (
        TINY.replace("[random, best_single, lin_ucb]", f"[{', '.join(POLICIES)}]")
        + "router: {log: calls.csv}\n"
    )
    with home_with(pool.replace("kind: ridge", "kind: auto"), home):
        for name in chain_of().stages:
            made = make_artifact(chain_of(), chain_of().stage(name))
            if name == "outcomes":  # a log, so that all stages can be made of this pool
                table, rng = Outcomes.load(made.folder), np.random.default_rng(0)
                rows, arms = np.arange(len(table)), rng.integers(0, len(table.arms), len(table))
                pd.DataFrame(
                    {
                        "prompt": table.prompts,
                        "model": [table.arms[a] for a in arms],
                        "score": table.scores[rows, arms],
                        "cost": table.costs[rows, arms],
                    }
                ).to_csv(home / "pools" / "calls.csv", index=False)
        for cell in chain_of().replays(
            [500.0]
        ):  # compiles what is watched below; watching a compiler takes long
            make_artifact(chain_of(), cell)
        done = subprocess.run(
            [sys.executable, "-c", WATCH], capture_output=True, text=True, timeout=500, env=dict(os.environ)
        )
    assert done.returncode == 0, done.stderr
    return {
        name: {kind: {m for m in modules if m.startswith("cabs_core.")} for kind, modules in seen.items()}
        for name, seen in json.loads(done.stdout.splitlines()[-1]).items()
    }


def modules_of(name: str) -> set[str]:
    policy = name.removeprefix("policy ")
    start = stages.policy_modules(policy) if policy != name else stages.stage_modules(name)
    return set(closure(start, stages.COVERED))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*WATCHED, *(f"policy {p}" for p in POLICIES)])
def test_editing_a_module_concerns_exactly_what_can_run_it(watched, name: str) -> None:
    covered = modules_of(name)
    executed = {m for m in watched[name]["executed"] if not m.startswith(OUTSIDE)}
    ran = {m for m in executed if module_file(m).name != "__init__.py"}  # packages only pass names on
    if (
        name in POOL_STAGES and POOL_STAGES[name].over_policies
    ):  # each policy's own version is part of its settings
        covered |= set().union(*(modules_of(f"policy {p}") for p in POLICIES))
    assert ran <= covered, f"runs but is in no version: {sorted(ran - covered)}"
    # What this small pool did not even import is there for other settings: other sources, encoders, learners.
    elsewhere = (
        "cabs_core.data.outcomes",
        "cabs_core.data.encoders",
        "cabs_core.algorithms.oracles",
        "cabs_core.algorithms.predictors",
        "cabs_core.base.compiled",
    )
    beyond = {m for m in modules_of(name) - watched[name]["imported"] if not m.startswith(elsewhere)}
    assert not beyond, f"in its version but never imported: {sorted(beyond)}"


@pytest.mark.parametrize("name", stages.POOL_STAGES)
def test_the_wording_of_messages_about_pool_files_makes_no_stage_stale(name: str) -> None:
    reading = {f"cabs_core.data.pool_files.{module}" for module in ("messages", "read")}
    assert not reading & modules_of(name)


def test_policies_concern_their_own_replays_and_no_stage_of_the_data() -> None:
    for name in ("outcomes", "splits", "prompt_embeddings", "oracles", "replay_problem"):
        reached = {m for m in modules_of(name) if m.startswith("cabs_core.algorithms.policies.")}
        assert not reached & {
            "cabs_core.algorithms.policies.hier_mix.policy",
            "cabs_core.algorithms.policies.cabs_c",
        }
    hier_mix = module_file("cabs_core.algorithms.policies.hier_mix.policy")
    assert hier_mix is not None
    readers = {
        p for p in all_policies() if hier_mix in closure(stages.policy_modules(p), stages.COVERED).values()
    }
    assert {split_name(policy)[0] for policy in readers} == {"hier_mix"}


@pytest.mark.parametrize(
    ("module", "stage"),
    [
        ("cabs_core.data.outcomes.sources.sprout", "outcomes"),
        ("cabs_core.data.outcomes.unpickle", "outcomes"),
        ("cabs_core.data.validation.tables", "splits"),
        ("cabs_core.data.outcomes.published", "outcomes"),
        ("cabs_core.pipeline.stages.replay", "policy lin_ucb"),
    ],
)
def test_modules_that_once_made_nothing_stale_are_seen(module: str, stage: str) -> None:
    assert module in modules_of(stage)


def test_who_imports_a_package_that_loads_all_its_modules_runs_them_all(package: Path, monkeypatch) -> None:
    (package / "loader.py").write_text("import small_package.sub\n")
    assert set(closure(["small_package.loader"])) == {"small_package.loader", "small_package.sub"}
    monkeypatch.setattr(code_versions, "LOADED_WHOLE", ("small_package.sub",))
    assert "small_package.sub.c" in closure(["small_package.loader"])


def test_all_formats_of_logs_are_in_the_code_version_of_a_log() -> None:
    reached = closure(["cabs_core.data.outcomes.from_logs"])
    assert {f"cabs_core.data.logs.formats.{name}" for name in LOG_FORMATS} <= set(reached)
