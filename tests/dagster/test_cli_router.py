"""`cabs export | route | feedback | doctor | rollback` on a pool whose chain was run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cabs_dagster.cli import main


def call(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output


def another(home: Path) -> str:
    """Another pool, which has not run."""
    text = (home / "pools" / "tiny.yaml").read_text()
    (home / "pools" / "another.yaml").write_text(text.replace("name: tiny", "name: another"))
    return "another"


@pytest.mark.slow
def test_a_routing_table_for_another_gateway(ran: Path, tmp_path: Path) -> None:
    call("export", "--pool", another(ran), "--table", "json", code=2)  # nothing was made yet
    table = json.loads(call("export", "--pool", "tiny", "--table", "json", "--rho", "500"))
    assert table["rho"] == 500.0 and table["rows"] and table["lost"]["low"] <= table["lost"]["value"]
    assert "no verdict at rho 7" in call("export", "tiny", "--table", "json", "--rho", "7", code=2)
    said = call("export", "tiny", "--table", "litellm", "--out", str(tmp_path / "routes.yaml"))
    assert (
        "right answers a request more" in said
        and "auto_router/cabs" in (tmp_path / "routes.yaml").read_text()
    )
    names = [word for model in table["rows"][0]["others"] for word in ("--call", f"{model}=ours/{model}")]
    assert "--call" in call("export", "tiny", "--table", "openrouter", *names, code=2)
    names += ["--call", f"{table['rows'][0]['model']}=ours/one"]
    assert "ours/one" in call("export", "tiny", "--table", "openrouter", *names)
    assert "is of a router" in call("export", "tiny", "--table", "json", "--policy", "ridge", code=2)
    assert "a model of" in call("export", "tiny", "--table", "json", "--call", "x=y", code=2)


@pytest.mark.slow
def test_from_a_pool_to_a_router_that_learns(ran: Path, tmp_path: Path) -> None:
    out = tmp_path / "router"
    call("export", "--pool", another(ran), "--out", str(out), code=2)  # nothing was made yet
    assert not out.exists()
    said = call("export", "--pool", "tiny", "--out", str(out), "--policy", "hier_mix", "--epsilon", "0.1")
    assert "goes on learning" in said and "which chose it and so flatter it" in said
    verdict = (out / "held_out.md").read_text().strip()
    assert verdict in said and verdict in call("serve", "--router", str(out), "--check")
    assert "hier_mix" in said and [p.name for p in tmp_path.glob("*")].count("router") == 1
    router = ["--router", str(out)]
    found = json.loads(call("route", "What is two plus two?", *router, "--json", "--explain"))
    assert found["model"] in found["scores"] and found["explanation"]["neighbours"]
    assert "cabs feedback" in call("route", "Another one?", *router, "--available", found["model"])
    assert call("feedback", found["id"], "--score", "1", *router).strip() == "recorded"
    assert call("feedback", found["id"], "--score", "1", *router).strip() == "duplicate"
    assert call("feedback", found["id"], "--score", "0", *router, code=1).strip() == "conflict"
    assert "unknown decision" in call("feedback", "nobody", "--score", "1", *router, code=2)
    assert "score" in call("feedback", found["id"], "--score", "7", *router, code=2)
    assert "2 decisions, 1 scored" in call("doctor", *router)
    assert json.loads(call("doctor", *router, "--json"))["rewards"] == 1
    call("rollback", *router, code=2)
    call("export", "--pool", "tiny", "--out", str(out), "--policy", "ridge")
    assert "ridge" in call("doctor", *router)
    call("rollback", *router)
    assert "hier_mix" in call("doctor", *router)
    assert "exists in replay only" in call(
        "export", "--pool", "tiny", "--out", str(out), "--policy", "oracle_best", code=2
    )
    assert "empty text" in call("route", "  ", *router, code=2)
