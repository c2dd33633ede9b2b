"""A router serves with nothing but what its requirements.txt lists, and the list is what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.base.catalog.policies import all_policies, is_deployable, policy_record
from cabs_core.base.errors import RouterError
from cabs_core.data.pool_files import pool_from
from cabs_core.router.build import build_bundle
from cabs_core.router.bundle import read_manifest
from cabs_core.router.requirements import closure, serving_requirements
from cabs_server.main import main

#: one of each class: a preset imports nothing of its own
SERVED = [
    name
    for name in all_policies()
    if "@" not in name and is_deployable(name) and policy_record(name).family != "neural"
]
NEVER = set("torch transformers onnx dagster cvxpy clarabel altair great-expectations pandas pyarrow".split())
NEVER |= {"scikit-learn"}  # it fits encoders and predictors; what is fitted does without

#: a finder that knows the standard library, this project, and the distributions that the bundle lists
PROGRAM = """
import json, re, sys
from importlib import metadata
from pathlib import Path
folders, allowed, known = sys.argv[1:], set(), metadata.packages_distributions()
for folder in folders:
    for line in Path(folder, "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            allowed.add(line.partition("==")[0])
class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in known and not top.startswith("cabs_"):
            if not {re.sub(r"[-_.]+", "-", n).lower() for n in known[top]} & allowed:
                raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import cabs_server.main, cabs_server.app, cabs_core.router.doctor
from cabs_core import Router, RouterOptions
chosen = {}
for folder in folders:
    router = Router.load(folder, RouterOptions(seed=1))
    decision = router.route("what is the cost of a cat ?")
    assert router.explain(decision)["models"] and router.feedback(decision.id, score=1.0) == "recorded"
    chosen[folder] = decision.model
    router.close()
print(json.dumps(chosen))
"""


def serve(*folders: Path) -> dict[str, str]:
    """The model that each bundle chose in a process that can import only what the bundles list."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, folders)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    listing: dict[str, str] = json.loads(done.stdout)
    assert len(listing) == len(folders)
    return listing


def listed(folder: Path) -> set[str]:
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return {Requirement(line).name for line in lines if not line.startswith("#")}


@pytest.mark.e2e
def test_every_policy_that_is_not_neural_serves_with_what_is_listed(tmp_path, pool, artifacts) -> None:
    folders = [tmp_path / name.replace("@", "__") for name in SERVED]
    for name, folder in zip(SERVED, folders, strict=True):
        build_bundle(folder, pool, artifacts, policy=name, rho=300.0)
        assert listed(folder).isdisjoint(NEVER) and "cabs-routing" in listed(folder)
        assert "requirements.txt" in read_manifest(folder).files
    assert set(serve(*folders).values()) <= set(pool.models)


@pytest.mark.slow
def test_a_transformer_serves_with_what_is_listed(tmp_path, bert_pool, bert_artifacts) -> None:
    build_bundle(tmp_path / "r", bert_pool, bert_artifacts, policy="hier_mix", rho=300.0)
    assert listed(tmp_path / "r").isdisjoint(NEVER)
    assert {"onnxruntime", "tokenizers"} <= listed(tmp_path / "r")
    serve(tmp_path / "r")


@pytest.mark.slow
def test_static_vectors_serve_with_a_tokenizer_and_without_onnxruntime(
    tmp_path, bert_pool, artifacts_of, monkeypatch
) -> None:
    monkeypatch.setenv("CABS_HOME", str(tmp_path / "home"))
    fields = bert_pool.model_dump(mode="json", exclude_unset=True)
    static_pool = pool_from({**fields, "encoder": {"name": "static", "of": bert_pool.encoder.name}})
    inputs = artifacts_of(tmp_path / "artifacts", static_pool)
    build_bundle(tmp_path / "r", static_pool, inputs, policy="hier_mix", rho=300.0)
    assert listed(tmp_path / "r").isdisjoint({*NEVER, "onnxruntime"})
    assert "tokenizers" in listed(tmp_path / "r")
    assert sorted(p.name for p in (tmp_path / "r" / "encoder").iterdir()) == ["fitted.json", "fitted.npz"]
    serve(tmp_path / "r")


@pytest.mark.slow
def test_the_oracle_network_serves_without_torch(tmp_path, pool, artifacts_of) -> None:
    oracle = {"kind": "network", "hidden": 16, "max_epochs": 2}
    fields = {
        **pool.model_dump(mode="json", exclude_unset=True),
        "oracle": oracle,
        "features": {"dim": 8, "kind": "head"},
    }
    network_pool = pool_from(fields)
    inputs = artifacts_of(tmp_path / "artifacts", network_pool)
    build_bundle(tmp_path / "r", network_pool, inputs, policy="cabs_c_linear", rho=300.0)
    assert Oracles.load(tmp_path / "r" / "oracles").network is not None
    assert listed(tmp_path / "r").isdisjoint(NEVER)
    serve(tmp_path / "r")


def test_a_neural_policy_says_that_it_needs_torch() -> None:
    text = serving_requirements("cabs_c_neural", "tfidf-svd")
    assert "pip install torch==" in text and "\ntorch==" not in text


def test_a_list_is_closed_under_what_is_required() -> None:
    names = closure(["starlette", "Scikit_Learn"])
    assert names == sorted(names) == closure(names) and {"anyio", "joblib", "numpy"} <= set(names)
    with pytest.raises(RouterError, match="pip install no-such-package"):
        closure(["no-such-package"])


def test_the_command_line_of_the_serving_install(make_bundle, tmp_path) -> None:
    where = ["--router", str(make_bundle("ridge")), "--log", str(tmp_path / "log.sqlite")]
    done = CliRunner().invoke(main, ["route", "how many legs?", "--json", *where])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["feedback", json.loads(done.output)["id"], "--score", "1", *where])
    assert done.exit_code == 0 and "recorded" in done.output
    done = CliRunner().invoke(main, ["doctor", "--router", str(tmp_path / "none")])
    assert done.exit_code == 2 and str(tmp_path / "none") in done.output
    assert sorted(main.commands) == ["doctor", "feedback", "log", "rollback", "route", "router", "serve"]


def test_a_package_that_is_missing_is_named(monkeypatch, make_bundle, tmp_path) -> None:
    def absent(*_, **__):
        raise ModuleNotFoundError("No module named 'psycopg2'", name="psycopg2")

    monkeypatch.setattr("cabs_core.router.router.Router.load", absent)
    done = CliRunner().invoke(main, ["route", "x", "--router", str(make_bundle("ridge"))])
    assert done.exit_code == 2 and "'psycopg2' is not installed" in done.output
