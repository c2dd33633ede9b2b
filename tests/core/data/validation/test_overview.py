"""`cabs pool add`: what a table holds, and that it is refused exactly when a run would refuse it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from cabs_core.base.errors import DataError
from cabs_core.data.pools.find import load_pool_file
from cabs_core.data.validation.overview import overview


def support_table(queries: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = np.array(["refund", "login", "invoice", "crash", "delay", "export", "price", "account"])
    rows = []
    for i in range(queries):
        number = i % (queries - 2)  # the last two repeat the first two
        prompt = f"Ticket {number}: " + " ".join(words[(np.arange(5) * (number % 7 + 1)) % 8])
        hard = rng.random()
        for model, skill, cost in (("small", 0.5, 1e-4), ("medium", 0.7, 8e-4), ("large", 0.9, 6e-3)):
            rows.append((f"q{i}", prompt, model, float(rng.random() < skill * (1.2 - hard * 0.4)), cost))
    return pd.DataFrame(rows, columns=["query_id", "prompt", "model", "score", "cost"])


def given(folder: Path, frame: pd.DataFrame, more: str = "") -> Path:
    frame.to_csv(folder / "tickets.csv", index=False)
    path = folder / "tickets.yaml"
    path.write_text(f"source: {{kind: file, path: tickets.csv}}\n{more}")
    return path


def test_an_overview_says_what_the_table_holds(cabs_home: Path, tmp_path: Path) -> None:
    frame = support_table()
    frame.loc[[4, 10], "cost"] = None
    frame.loc[16, "score"] = None
    about = overview(load_pool_file(given(tmp_path, frame)))
    text = about.text
    assert {"900", "297", "3", "1"} <= set(about.lines[0].replace(",", "").split())
    assert "3 of 300 queries" in text and "costs: medium 2" in text
    kept = about.outcomes
    for j, arm in enumerate(kept.arms):
        (line,) = [line for line in about.lines if line.startswith(arm)]
        assert f"{kept.scores[:, j].mean():.3f}" in line and f"{1000 * kept.costs[:, j].mean():.4g}" in line
    assert "(2 times) 'Ticket 0: refund" in text
    assert "chosen from the costs" in text
    (worth,) = [line for line in about.lines if "right answer is worth" in line]
    assert "$0.002, " in worth and "$0.50, any price (" in worth
    # 297 prompts are too few to show that scores follow from words, so nothing is said of it
    assert about.warnings == ()


def test_rhos_that_do_not_fit_the_costs_are_noted(cabs_home: Path, tmp_path: Path) -> None:
    dear = support_table().assign(cost=lambda f: f["cost"] * 1000)
    about = overview(load_pool_file(given(tmp_path, dear, "replay: {rhos: paper}\n")))
    assert "most models cost more" in about.text
    assert "$2.00 and $500" in about.text
    free = overview(load_pool_file(given(tmp_path, support_table().assign(cost=0))))
    assert "nothing can be saved" in free.text


def test_prices_of_a_token_are_asked_about(cabs_home: Path, tmp_path: Path) -> None:
    """2.5e-06 is the price of one token; 0 is free and .02 is a small model's."""
    frame = support_table().assign(n_input_tokens=1000, n_output_tokens=100)
    prices = "prices: {small: {input: 2.5e-6, output: 1e-5}, medium: {input: 0.02, output: 0}}\n"
    pool_file = load_pool_file(given(tmp_path, frame, "missing: price\n" + prices))
    warnings = overview(pool_file).warnings
    (question,) = [warning for warning in warnings if "prices.small" in warning]
    assert "input 2.5e-06, output 1e-05" in question and "input: 2.5, output: 10" in question


def test_a_check_that_would_stop_a_run_refuses_the_table(cabs_home: Path, tmp_path: Path) -> None:
    frame = support_table()
    frame = frame[~((frame["model"] == "large") & (frame["query_id"].str.len() < 4))]
    refusal = (
        r"expected at most 20 % dropped \(check queries_kept\).*"
        r"Most cells are missing for 'large' \(100\)"
    )
    with pytest.raises(DataError, match=refusal):
        overview(load_pool_file(given(tmp_path, frame)))
    with pytest.raises(DataError, match=r"check split_sizes|split is empty|no validation prompts"):
        overview(load_pool_file(given(tmp_path, support_table(30))))


def test_a_large_table_is_told_what_it_will_take(cabs_home: Path, tmp_path: Path, monkeypatch) -> None:
    from cabs_core.data.validation import overview as module

    path = given(tmp_path, support_table())
    assert "processor time" not in overview(load_pool_file(path)).text
    monkeypatch.setattr(module, "_LARGE", 900)
    monkeypatch.setattr(module, "_SECONDS", 0.2)
    about = overview(load_pool_file(path))
    assert all(figure in about.text for figure in ("900 outcomes", "3 minutes", "0.4 GB", "embedding"))
    fitted = overview(load_pool_file(given(tmp_path, support_table(), "encoder: {name: tfidf-svd}\n")))
    assert "processor time" in fitted.text and "embedding" not in fitted.text


def _cell(column: str, value: str):
    return lambda f: f.assign(**{column: f[column].astype(str).where(f.index != 5, value)})


#: what people have, and a sentence that must be said of it, be it an error or a note
ODD_TABLES = {
    "grades": (_cell("score", "B"), "grades and stars are not: write numbers and set score_range"),
    "yes and no in letters": (_cell("score", "N"), "300 queries x 3 models"),
    "thousands": (_cell("cost", "1,234.5"), "with a decimal point and without thousands separators"),
    "a price": (lambda f: f.rename(columns={"cost": "usd_per_1m_tokens"}), "its name says prices: map"),
    "another currency": (lambda f: f.rename(columns={"cost": "cost_eur"}), "give costs in USD"),
    "cents": (lambda f: f.rename(columns={"cost": "cost_cents"}), "column 'cost_cents' is read as cents"),
    "ids for prompts": (lambda f: f.assign(prompt=f["query_id"]), "are these ids?"),
    "Python's lists": (
        lambda f: f.assign(prompt=[str([{"role": "user", "content": p}]) for p in f["prompt"]]),
        "messages as Python prints them",
    ),
    "a name in capitals": (_cell("model", "SMALL"), "'SMALL' differ in case or white space alone"),
    "white space": (
        lambda f: f.drop(columns="query_id").assign(
            prompt=f["prompt"] + (f["model"] == "large").map({True: " ", False: ""})
        )[:894],
        "298 prompts differ from another one in case, white space or the form of accents",
    ),
    "numbered rows": (
        lambda f: f.assign(query_id=range(len(f))),
        "columns.query_id: null` goes by the prompt",
    ),
    "gaps in task": (lambda f: f.assign(task=None), "source.columns.task: null leaves the column out"),
    "wide": (lambda f: f.rename(columns={"model": "a_score"}), "a column a model is `layout: wide`"),
}


@pytest.mark.parametrize("case", ODD_TABLES)
def test_odd_tables_are_not_read_in_silence(cabs_home: Path, tmp_path: Path, case: str) -> None:
    change, expected = ODD_TABLES[case]
    frame = change(support_table())
    cost = next((c for c in frame.columns if "cost" in c or "usd" in c), "cost")
    path = given(tmp_path, frame)
    path.write_text(f"source: {{kind: file, path: tickets.csv, columns: {{cost: {cost}}}}}\n")
    try:
        text = overview(load_pool_file(path)).text
    except DataError as error:
        text = str(error)
    assert expected in text


def test_what_stands_above_the_header_and_what_lacks_a_column(cabs_home: Path, tmp_path: Path) -> None:
    path = given(tmp_path, support_table())
    table = tmp_path / "tickets.csv"
    table.write_text("Results of May,,,\n" + table.read_text())
    with pytest.raises(DataError, match=r"delete.*names of the columns"):
        overview(load_pool_file(path))
    table.write_bytes(support_table().to_csv(index=False).encode("utf-16-le"))
    with pytest.raises(DataError, match="is UTF-16 text"):
        overview(load_pool_file(path))
    wide = support_table().pivot(index=["query_id", "prompt"], columns="model", values=["score", "cost"])
    wide.columns = [f"{model}_{what}" for what, model in wide.columns]
    wide.drop(columns="large_cost").reset_index().to_csv(table, index=False)
    columns = "columns: {score: '{model}_score', cost: '{model}_cost'}"
    path.write_text(f"source: {{kind: file, path: tickets.csv, layout: wide, {columns}}}\n")
    assert "not read: large_score" in overview(load_pool_file(path)).text


def test_adding_shows_the_overview(cabs_home: Path, tmp_path: Path) -> None:
    from cabs_dagster.cli import main

    path = given(tmp_path, support_table(), "score_range: [0, 1]\n# a comment stays\n")
    added = CliRunner().invoke(main, ["pool", "add", str(path)])
    assert added.exit_code == 0, added.output
    assert "300 queries" in added.output and "cabs run --pool tickets" in added.output
    assert "# a comment stays" in (cabs_home / "pools" / "tickets.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "unit", "expected"),
    [
        ("took_ms", 1000.0, "column 'took_ms' is read as milliseconds; median 1.5 s"),
        ("took", 1.0, "latencies: seconds, median 1.5 s"),
        (
            "took",
            1000.0,
            "median 1.5e+03 s; if they are milliseconds, give the column a name that ends in _ms",
        ),
        ("teams", 1.0, "latencies: seconds, median 1.5 s"),
    ],
)
def test_the_unit_of_latencies_is_said(cabs_home: Path, tmp_path: Path, name, unit, expected) -> None:
    frame = support_table().assign(**{name: 1.5 * unit})
    more = f"source: {{kind: file, path: tickets.csv, columns: {{latency: {name}}}}}\n"
    path = given(tmp_path, frame)
    path.write_text(more)
    assert expected in overview(load_pool_file(path)).text


def test_judges_and_near_duplicates_are_told(cabs_home: Path, tmp_path: Path) -> None:
    frame = support_table()
    letters = [chr(97 + i // 3 % 26) * 2 + chr(97 + i // 78) for i in range(len(frame))]
    frame["prompt"] = [f"{name}: {text}" for name, text in zip(letters, frame["prompt"], strict=True)]
    copies = frame.head(30).assign(
        prompt=lambda f: f["prompt"].str.upper(), query_id=lambda f: "x" + f["query_id"]
    )
    frame = pd.concat([frame, copies]).rename(columns={"score": "judge_a"})
    frame["judge_b"] = 1 - frame["judge_a"]
    path = given(tmp_path, frame)
    columns = ", columns: {score: judge_a, judges: [judge_b]}}"
    path.write_text(path.read_text().replace("tickets.csv}", "tickets.csv" + columns))
    text = overview(load_pool_file(path)).text
    assert "(judge_a, judge_b)" in text
    assert "20 prompts in 10 groups" in text
