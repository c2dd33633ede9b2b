"""The README stays short, its links lead somewhere, and its code on the library page runs."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.data.endpoints.upstreams import Upstreams
from cabs_core.data.pool_files import pool_from

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", README):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        assert (ROOT / name).exists(), target
        assert not anchor or anchor in anchors(ROOT / name), target


def written(name: str) -> Any:
    """Return the YAML that the README writes into a file."""
    (text,) = re.findall(rf"cat > {name} <<'YAML'\n(.*?)YAML", README, re.DOTALL)
    return yaml.safe_load(text)


def test_its_pool_and_its_upstreams_are_valid() -> None:
    assert pool_from(written("my_pool.yaml")).name == "my_pool"
    assert set(Upstreams.model_validate(written("upstreams.yaml")).models) == {"large", "medium", "small"}


def test_the_contract_of_a_policy_is_quoted_whole_and_has_at_most_twelve_members() -> None:
    source = f"```python\n{inspect.getsource(Policy)}```"
    notebook = json.loads((ROOT / "docs/notebooks/own_policy.ipynb").read_text(encoding="utf-8"))
    assert source in README
    assert any(source in "".join(cell["source"]) for cell in notebook["cells"])
    members = [name for name in vars(Policy) if not name.startswith("_")]
    assert len(members) <= 12
    assert "?" not in inspect.getsource(Policy)
    methods = [vars(Policy)[name] for name in members if name not in ("Settings", "any_rho")]
    assert all(inspect.getdoc(method) for method in methods)


def test_the_library_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    synthetic_problem(n=60).save(tmp_path / ".cabs/artifacts/replay_problem/demo/test")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    assert (tmp_path / "my_policy").is_dir()
