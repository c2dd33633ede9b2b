"""Logs of tools that have no format of their own: what ended a call, and what is no log of scores."""

import json
from pathlib import Path
from typing import Any

import pytest

from cabs_core.base.errors import DataError
from cabs_core.data.logs.read import Log, read_log


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def of_lines(folder: Path, rows: list[dict[str, Any]], columns: dict[str, str]) -> Log:
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_log(path, columns=columns)


def of_csv(folder: Path, text: str, columns: dict[str, str] | None = None) -> Log:
    path = folder / "log.csv"
    path.write_text(text, encoding="utf-8")
    return read_log(path, columns=columns)


def test_events_of_posthog_are_calls_unless_they_failed_and_feedback_reaches_them(
    tmp_path: Path,
) -> None:
    def event(text: str, trace: str, **more: Any) -> dict[str, Any]:
        properties = {"$ai_model": "m1", "$ai_input": asked(text), "$ai_total_cost_usd": 0.01}
        return {"properties": {**properties, "$ai_trace_id": trace, **more}}

    rows = [
        event("a", "t1", **{"$ai_http_status": 200}),
        event("b", "t2", **{"$ai_http_status": 500}),
        event("c", "t3", **{"$ai_is_error": True}),
        {"properties": {"$ai_trace_id": "t1", "score": 1}},
    ]
    columns = {
        "prompt": "properties.$ai_input",
        "model": "properties.$ai_model",
        "cost": "properties.$ai_total_cost_usd",
        "score": "properties.score",
    }
    log = of_lines(tmp_path, rows, columns)
    assert (log.frame["prompt"].tolist(), log.frame["score"].tolist()) == (["a"], [1.0])
    assert log.receipt.left_out == {"failed": 2, "no prompt": 1}


def test_a_cancelled_call_is_no_answer(tmp_path: Path) -> None:
    log = of_csv(tmp_path, "prompt,model,score,cost,cancelled\na,m1,1,0.1,false\nb,m2,0,0.2,true\n")
    assert log.frame["prompt"].tolist() == ["a"]
    assert log.receipt.left_out == {"failed": 1}


def test_a_status_with_its_reason_is_an_http_status(tmp_path: Path) -> None:
    text = "prompt,model,score,cost,status\na,m1,1,0.1,200 OK\nb,m2,0,0.2,429 Too Many Requests\n"
    log = of_csv(tmp_path, text)
    assert (log.frame["prompt"].tolist(), log.receipt.left_out) == (["a"], {"failed": 1})


def test_a_column_of_hits_and_misses_says_which_answers_came_from_a_cache(tmp_path: Path) -> None:
    log = of_csv(tmp_path, "prompt,model,score,cost,cache\na,m1,1,0.1,HIT\nb,m2,0,0.2,MISS\n")
    assert (log.frame["prompt"].tolist(), log.receipt.left_out) == (["b"], {"answered from a cache": 1})


@pytest.mark.parametrize(
    "header",
    [
        "prompt,left,right,preference",
        "instruction,chosen,rejected,chosen_model,rejected_model",
        "prompt,response_a,response_b,winner",
    ],
)
def test_a_table_of_pairs_is_refused_as_one(tmp_path: Path, header: str) -> None:
    row = ",".join("x" for _ in header.split(","))
    with pytest.raises(DataError, match="pair"):
        of_csv(tmp_path, f"{header}\n{row}\n")


def test_a_table_with_a_column_of_models_may_have_columns_called_left_and_right(tmp_path: Path) -> None:
    log = of_csv(tmp_path, "prompt,model,score,cost,left,right\na,m1,1,0.1,x,y\n")
    assert log.frame["model"].tolist() == ["m1"]
