"""RouterArena: files in its form, its score by its formulas."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks.arena.__main__ import arena
from benchmarks.arena.submission import arena_score, robustness_score, score
from cabs_core.base.errors import StorageError

NAMES = {"gpt-4-1106-preview": "gpt-4-turbo", "claude-v1": "claude-3-haiku-20240307"}


@pytest.fixture
def dataset(tmp_path, test_prompts):
    """Two files as `prep_datasets.py` writes them: an index such as MMLU_12, the formatted prompt; some have
    `prompt` alone."""
    rows = [
        {"global index": f"MMLU_{i}", ("prompt_formatted" if i % 2 else "prompt"): text, "category": "x"}
        for i, text in enumerate(test_prompts[:80])
    ]
    (tmp_path / "router_data_10.json").write_text(json.dumps(rows))
    altered = [
        {"global index": r["global index"], "prompt": r.get("prompt") or r["prompt_formatted"]}
        for r in rows[:30]
    ]
    altered[0]["prompt"] = altered[0]["prompt"].upper() + " ??"
    (tmp_path / "router_robustness.json").write_text(json.dumps(altered))
    return tmp_path


def test_the_files_of_a_submission(dataset, make_bundle, test_prompts) -> None:
    bundle = make_bundle("ridge")
    words = (
        f"predict ours --dataset {dataset}/router_data_10.json --robustness {dataset}/router_robustness.json "
        f"--router {bundle} --out {dataset}/router_inference"
    ).split()
    words += [part for pair in NAMES.items() for part in ("--model", "=".join(pair))]
    done = CliRunner().invoke(arena, words)
    assert done.exit_code == 0, done.output
    folder = dataset / "router_inference"
    config = json.loads((folder / "config" / "ours.json").read_text())["pipeline_params"]
    assert config["router_name"] == "ours" and set(NAMES.values()) < set(config["models"])
    entries = json.loads((folder / "predictions" / "ours.json").read_text())
    assert [e["global index"] for e in entries] == [f"MMLU_{i}" for i in range(80)]
    assert all(e["prediction"] in config["models"] and e["generated_result"] is None for e in entries)
    assert [e["prompt"] for e in entries] == test_prompts[:80]
    altered = json.loads((folder / "predictions" / "ours-robustness.json").read_text())
    assert len(altered) == 30 and robustness_score(entries, altered) >= 29 / 30
    again = CliRunner().invoke(arena, words)  # answers that were paid for may be in it
    assert isinstance(again.exception, StorageError) and "is there already" in str(again.exception)
    wrong = CliRunner().invoke(arena, [*words[:-1], "claude-v1"])
    assert wrong.exit_code == 2 and "OURS=THEIRS" in wrong.output


def test_the_score_is_the_weighted_harmonic_mean_of_accuracy_and_cheapness() -> None:
    """Cheapness is 1 up to 0.0044 USD per 1,000 queries, 0 from 200 on, logarithmic between."""
    assert arena_score(0.001, 0.5) == arena_score(0.0044, 0.5) == pytest.approx(1.1 * 0.5 / (0.1 * 0.5 + 1.0))
    assert arena_score(200.0, 0.5) == arena_score(1e4, 0.5) == arena_score(1.0, 0.0) == 0.0
    half = (0.0044 * 200.0) ** 0.5
    assert arena_score(half, 0.8) == pytest.approx(1.1 * 0.8 * 0.5 / (0.1 * 0.8 + 0.5))


def test_the_figures_of_evaluated_predictions(tmp_path) -> None:
    def entry(i, model, accuracy, cost, optimal=False):
        entry_ = {"global index": f"A_{i}", "prediction": model, "accuracy": accuracy, "cost": cost}
        return entry_ | ({"for_optimality": True} if optimal else {})

    rows = [
        entry(0, "dear", 1.0, 0.004),
        entry(1, "cheap", 0.0, 0.001),
        entry(2, "cheap", 1.0, 0.001),
        entry(3, "dear", None, None),
        entry(0, "cheap", 1.0, 0.001, True),
        entry(1, "dear", 1.0, 0.004, True),
        entry(2, "dear", 1.0, 0.004, True),
    ]
    (tmp_path / "p.json").write_text(json.dumps(rows))
    (tmp_path / "r.json").write_text(
        json.dumps(
            [{"global index": "A_0", "prediction": "cheap"}, {"global_index": "A_1", "prediction": "cheap"}]
        )
    )
    figures = score(tmp_path / "p.json", tmp_path / "r.json")
    assert figures["accuracy"] == pytest.approx(2 / 3) and figures["cost_per_1000"] == pytest.approx(6 / 4)
    assert figures["arena_score"] == pytest.approx(arena_score(1.5, 2 / 3)) and figures["robustness"] == 0.5
    assert figures["opt_sel"] == pytest.approx(1 / 3) and figures["opt_acc"] == pytest.approx(2 / 3)
    assert figures["opt_cost"] == pytest.approx(0.002 / 0.005) and figures["optimality_queries"] == 3
    result = CliRunner().invoke(
        arena, ["score", str(tmp_path / "p.json"), "--robustness", str(tmp_path / "r.json")]
    )
    assert "RouterArena score" in result.output and "robustness 0.5000" in result.output
    as_json = CliRunner().invoke(arena, ["score", str(tmp_path / "p.json"), "--json"])
    assert json.loads(as_json.output)["queries"] == 4
