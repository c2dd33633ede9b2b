"""Small files of the same form as the published benchmarks."""

from __future__ import annotations

import hashlib
import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import HubServer

from cabs_core.data.outcomes.sources import openllm_v2, routerbench, sprout


def routerbench_table(n: int = 20) -> pd.DataFrame:
    """Like the published file: quality columns of objects, cost columns in another model order, reprs of
    lists."""
    data: dict = {
        "sample_id": [f"mmlu.{i}" for i in range(n)],
        "prompt": [repr([f"Question {i}?\nAnswer:"]) for i in range(n)],
        "eval_name": ["mmlu" if i % 2 else "hellaswag" for i in range(n)],
    }
    for j, model in enumerate(routerbench.MODELS):
        data[model] = [[0, 0.25, 0.5, 0.75, 1, True, 1.0][(i + j) % 7] for i in range(n)]
    for model in routerbench.MODELS[::-1]:
        data[f"{model}|model_response"] = ["..."] * n
        data[f"{model}|total_cost"] = [1e-4 * (1 + routerbench.MODELS.index(model))] * n
    data["oracle_model_to_route_to"] = ["gpt-4-1106-preview"] * n
    table = pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in data.items()})
    for model in routerbench.MODELS:
        table[f"{model}|total_cost"] = table[f"{model}|total_cost"].astype(float)
    table.columns = pd.Index(list(data), dtype=object)
    return table


def sprout_part(n: int, start: int, answers: list[str] | None = None) -> bytes:
    """One parquet file of `n` rows; long `answers` make it large."""
    words = "algebra history law biology chess poetry energy trade".split()
    columns: dict = {
        "key": pa.array([f"k{i}" for i in range(n)]),
        "dataset": pa.array(["gsm8k" if i % 2 else "mmlu" for i in range(n)]),
        "prompt": pa.array(
            [f"prompt {i} on {words[i % 8]}, {words[i // 8 % 8]}" for i in range(start, start + n)]
        ),
        "golden_answer": pa.array(answers or ["42"] * n),
    }
    for j, model in enumerate(sprout.MODELS):
        cells = [
            {
                "score": ((start + i + j) % 5) / 4,
                "num_input_tokens": 100 + i,
                "num_output_tokens": 10 * (j + 1),
                "response": "long text",
            }
            for i in range(n)
        ]
        if start == 0 and j == 4:
            cells[2] = None
        if start == 0 and j == 5:
            cells[7]["num_output_tokens"] = None
        columns[model] = pa.array(cells)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def openllm_files(document_scores: dict[str, np.ndarray]) -> tuple[bytes, bytes]:
    """The pickle and the questions as published, from scores `[models, n]` in document order."""
    matrix, questions = {}, {}
    for task, scores in document_scores.items():
        n = scores.shape[1]
        published = np.array(
            [
                row[openllm_v2.process_order(n, openllm_v2.RUNS[m][0])]
                for m, row in zip(openllm_v2.MODELS, scores)
            ]
        )
        names = [f"open-llm-leaderboard/{m.replace('/', '__')}-details" for m in openllm_v2.MODELS]
        extra = "open-llm-leaderboard/upstage__SOLAR-10.7B-Instruct-v1.0-details"
        matrix[f"leaderboard_{task}"] = {
            "correctness": np.vstack([np.ones((1, n)), published]),
            "models": [extra, *names],
        }
        texts = [f"{task} question {i}" for i in range(n)]
        questions[f"leaderboard_{task}"] = {"Qs": texts, "Ps": ["few shots. " * 9 + t for t in texts]}
    matrix["leaderboard_ifeval"] = {
        "correctness": {"correctness_inst": np.ones((2, 2))},
        "models": ["a", "b"],
    }
    questions["leaderboard_ifeval"] = {"Qs": ["q"], "Ps": ["p"]}
    return pickle.dumps(matrix, protocol=5), json.dumps(questions).encode()


def put_openllm(hub: HubServer, monkeypatch: pytest.MonkeyPatch, matrix: bytes, questions: bytes) -> None:
    """Put them on the hub; the published matrix has a pin in the code, and the small one needs its own."""
    name = openllm_v2.MATRIX[0]
    monkeypatch.setattr(openllm_v2, "MATRIX", (name, len(matrix), hashlib.sha256(matrix).hexdigest()))
    hub.put_raw(f"/{openllm_v2.FOLDER}/{name}", matrix)
    hub.put_raw(f"/{openllm_v2.FOLDER}/{openllm_v2.QUESTIONS}", questions)
