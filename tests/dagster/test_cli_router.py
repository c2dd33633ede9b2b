"""`cabs export | route | feedback | doctor | rollback` on a pool whose chain was run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests_support import output_of


def another(home: Path) -> str:
    """Another pool, which has not run."""
    text = (home / "pools" / "tiny.yaml").read_text()
    (home / "pools" / "another.yaml").write_text(text.replace("name: tiny", "name: another"))
    return "another"


@pytest.mark.slow
def test_a_routing_table_for_another_gateway(ran: Path, tmp_path: Path) -> None:
    output_of("export", "--pool", another(ran), "--table", "json", code=2)  # nothing was made yet
    table = json.loads(output_of("export", "--pool", "tiny", "--table", "json", "--anyway"))
    assert table["rows"] and table["low"] <= table["difference"] <= table["high"]
    assert "is of a router" in output_of("export", "tiny", "--table", "json", "--rho", "7", code=2)
    output = output_of(
        "export", "tiny", "--table", "litellm", "--out", str(tmp_path / "routes.yaml"), "--anyway"
    )
    assert "points of quality" in output
    assert "auto_router/cabs" in (tmp_path / "routes.yaml").read_text()
    names = ["--anyway"]
    names += [word for model in table["rows"][0]["others"] for word in ("--call", f"{model}=ours/{model}")]
    assert "--call" in output_of("export", "tiny", "--table", "openrouter", *names, code=2)
    names += ["--call", f"{table['rows'][0]['model']}=ours/one"]
    assert "ours/one" in output_of("export", "tiny", "--table", "openrouter", *names)
    assert "is of a router" in output_of("export", "tiny", "--table", "json", "--policy", "ridge", code=2)
    assert "a model of" in output_of("export", "tiny", "--table", "json", "--call", "x=y", "--anyway", code=2)


@pytest.mark.slow
def test_from_a_pool_to_a_router_that_learns(ran: Path, tmp_path: Path) -> None:
    out = tmp_path / "router"
    output_of("export", "--pool", another(ran), "--out", str(out), code=2)  # nothing was made yet
    assert not out.exists()
    output = output_of(
        "export", "--pool", "tiny", "--out", str(out), "--policy", "hier_mix", "--epsilon", "0.1"
    )
    assert "goes on learning" in output
    verdict = (out / "held_out.md").read_text().strip()
    assert verdict in output and verdict in output_of("serve", "--router", str(out), "--check")
    assert "hier_mix" in output and [p.name for p in tmp_path.glob("*")].count("router") == 1
    router = ["--router", str(out)]
    decision = json.loads(output_of("route", "What is two plus two?", *router, "--json", "--explain"))
    assert decision["model"] in decision["scores"] and decision["explanation"]["neighbours"]
    assert "cabs feedback" in output_of("route", "Another one?", *router, "--available", decision["model"])
    assert output_of("feedback", decision["id"], "--score", "1", *router).strip() == "recorded"
    assert output_of("feedback", decision["id"], "--score", "1", *router).strip() == "duplicate"
    assert output_of("feedback", decision["id"], "--score", "0", *router, code=1).strip() == "conflict"
    assert "unknown decision" in output_of("feedback", "nobody", "--score", "1", *router, code=2)
    assert "score" in output_of("feedback", decision["id"], "--score", "7", *router, code=2)
    assert "2 decisions, 1 scored" in output_of("doctor", *router)
    assert json.loads(output_of("doctor", *router, "--json"))["rewards"] == 1
    output_of("rollback", *router, code=2)
    output_of("export", "--pool", "tiny", "--out", str(out), "--policy", "ridge")
    assert "ridge" in output_of("doctor", *router)
    output_of("rollback", *router)
    assert "hier_mix" in output_of("doctor", *router)
    assert "exists in replay only" in output_of(
        "export", "--pool", "tiny", "--out", str(out), "--policy", "oracle_best", code=2
    )
    assert "empty text" in output_of("route", "  ", *router, code=2)
