"""A product team with a CSV: 300 prompts, 3 models, list prices; every usual mistake is one line with its fix; a verdict."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from e2e_support import cabs, environment

from cabs_dagster.cli import main

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

#: USD per million tokens: input, output
PRICES = {"large": (5.0, 15.0), "small": (0.15, 0.6), "tiny": (0.05, 0.08)}
#: mean score on easy and on hard questions
SKILLS = {"large": (0.95, 0.9), "small": (0.93, 0.45), "tiny": (0.8, 0.1)}

POOL = """\
name: helpdesk
source:
  kind: file
  path: {path}
  columns: {{query_id: id, prompt: question, model: model, score: correct, input_tokens: tokens_in, output_tokens: tokens_out}}
prices:
  large: {{input: 5.0, output: 15.0}}
  small: {{input: 0.15, output: 0.6}}
  tiny: {{input: 0.05, output: 0.08}}
split: {{fractions: [0.5, 0.1, 0.4]}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
features: {{kind: pca, dim: 8}}
replay: {{trials: 3, answer_value_usd: [0.002, 0.02, 0.2]}}
tuning_budget: 0
policies: [random, best_single, ridge, lin_ucb]
"""


def outcomes() -> pd.DataFrame:
    """300 prompts x 3 models: the small model does for passwords, the large one is needed for contracts."""
    rng = np.random.default_rng(7)
    easy = np.array("password reset login email screen update printer mouse".split())
    hard = np.array("contract liability clause statute indemnity warranty tenant notice".split())
    rows = []
    for i in range(300):
        kind = i % 2
        words = " ".join(rng.choice(hard if kind else easy, 9))
        for model, skill in SKILLS.items():
            row = {"id": f"t{i}", "question": f"Ticket {i}: {words}?", "model": model}
            row |= {"correct": bool(rng.random() < skill[kind]), "tokens_in": int(rng.integers(200, 900))}
            rows.append(row | {"tokens_out": int(rng.integers(50, 400))})
    return pd.DataFrame(rows)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The team's folder, with a CABS_HOME of its own."""
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    return tmp_path


def add(desk: Path, frame: pd.DataFrame | bytes, name: str = "t.csv", pool: str = POOL) -> tuple[int, str]:
    """`cabs pool add` of a table under a name; exit code and what was said on the error output."""
    content = frame if isinstance(frame, bytes) else frame.to_csv(index=False).encode()
    (desk / name).write_bytes(content)
    (desk / "helpdesk.yaml").write_text(pool.format(path=name), encoding="utf-8")
    done = CliRunner().invoke(main, ["pool", "add", str(desk / "helpdesk.yaml")])
    return done.exit_code, done.stderr if done.exit_code else done.stdout


def changed(column: str, value: object, row: int = 4) -> pd.DataFrame:
    frame = outcomes().astype(object)
    frame.loc[row, column] = value
    return frame


def test_every_usual_mistake_is_one_line_with_its_fix(desk: Path) -> None:
    table, text = outcomes(), outcomes().to_csv(index=False)
    priceless = re.sub(r"prices:\n(  .*\n)+", "", POOL)
    mistakes = [
        (table.rename(columns={"correct": "corect"}), {}, "no column 'correct'.*Did you mean 'corect'"),
        (table.assign(correct=table["correct"] * 100), {}, r"set score_range: \[0, 100\]"),
        (changed("correct", "87 of 100"), {}, r"row 6: score \(column 'correct'\) is '87 of 100'; expected a number"),
        (table, {"pool": priceless}, "no column 'cost'.*prices.*cost_per_call"),
        (table, {"pool": POOL.replace("  tiny: {{input: 0.05, output: 0.08}}\n", "")}, "prices lacks tiny"),
        (table.drop(columns="tokens_out"), {}, "no column 'tokens_out'"),
        (table.assign(cost="€0.01"), {"pool": priceless}, "cost is '€0.01'.*plain numbers of USD"),
        (text.replace(",", ";").encode(), {}, "separated by semicolons.*Save the table with commas"),
        (text.replace("Ticket", "Anfrage für").encode("latin-1"), {}, "not UTF-8 text.*Latin-1"),
        (b"", {}, r"is empty \(0 bytes\)"),
        (b"PK", {"name": "t.xlsx"}, "a spreadsheet: save it as CSV"),
        (pd.concat([table, table.iloc[[4]]]), {}, r"duplicate \(query, model\): query 't1', model 'small'.*row 6"),
        (table[table["model"] == "small"], {"pool": priceless}, "one model|no column 'cost'"),
        (table, {"pool": POOL.replace("policies: [random", "policies: [randm")}, "Did you mean 'random'"),
        (table, {"pool": POOL.replace("tuning_budget", "tuning_buget")}, "tuning_bud?get"),
        (table, {"pool": POOL.replace("kind: file", "kind: fil")}, "source.kind"),
        (table.head(60), {}, "at least 10 queries in each|expected at least"),
    ]  # fmt: skip
    for frame, how, fix in mistakes:
        code, said = add(desk, frame, **how)
        assert code == 2, (fix, said)
        assert said.startswith("error: ") and len(said.strip().splitlines()) == 1, said
        assert re.search(fix, said), (fix, said)
        assert not (desk / "home" / "pools" / "helpdesk.yaml").exists(), "nothing is registered"


def test_from_the_csv_to_a_verdict(desk: Path) -> None:
    table = outcomes()
    code, said = add(desk, table)
    assert code == 0, said
    assert "900 rows, 300 queries x 3 models" in said and "costs: from prices" in said
    usd = {
        m: (group["tokens_in"].mean() * PRICES[m][0] + group["tokens_out"].mean() * PRICES[m][1]) / 1e3
        for m, group in table.groupby("model")
    }
    for model, cost in usd.items():
        assert re.search(rf"{model} .*{cost:.4g}$", said, re.M), (model, cost, said)
    assert "one right answer is worth: 0.002 USD, 0.02 USD, 0.2 USD (3 values" in said
    assert said.rstrip().endswith("next: cabs run --pool helpdesk")

    home = desk / "home"
    found = cabs(home, "run", "helpdesk", CABS_REPORTS_URL="")
    page = home / "artifacts" / "reports" / "helpdesk" / "index.html"
    assert f"report: {page}" in found and page.is_file()
    verdict = json.loads((page.parent / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["overall"]["decision"] in ("deploy", "keep", "unsure")
    assert sorted(case["rho"] for case in verdict["by_value"]) == [5, 50, 500]
    assert verdict["headline"] in page.read_text(encoding="utf-8")
    dear = min(
        verdict["by_value"], key=lambda case: case["rho"]
    )  # a right answer is worth 0.20 USD: ask the large one
    assert dear["model"] == "large" and dear["model_cost"] == pytest.approx(usd["large"], rel=0.1)
    markdown = (page.parent / "verdict.md").read_text(encoding="utf-8")
    assert markdown.startswith(f"## helpdesk: {verdict['headline']}")

    out = desk / "router"
    said = cabs(home, *verdict["export_command"].split()[1:-1], str(out))
    assert "router " in said and out.is_dir()
    answer = CliRunner().invoke(main, ["route", "Ticket: password reset login?", "--router", str(out)])
    assert answer.exit_code == 0 and any(model in answer.output for model in PRICES), answer.output
    assert os.environ["CABS_HOME"] == str(home)
