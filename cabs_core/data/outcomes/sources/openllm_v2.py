"""Open LLM Leaderboard v2, the score matrix published in the CARROT repository: 18 models, 21,065 queries.

The published matrix is not aligned across models. An evaluation harness that runs on W processes gives rank r
the documents r, r + W, r + 2W, ... and writes the ranks one after the other; models were evaluated with
different W, so column i of the matrix is another document for another model. Here every row of every task is
put back into document order (`published_order: true` keeps the published one, to see what it does).
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.atomic import atomic_path
from cabs_core.base.errors import DataError
from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.outcomes.download import RemoteFile, VerifiedFile, fetch
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.sources.converted import converted_path
from cabs_core.data.outcomes.table import text_array
from cabs_core.data.outcomes.unpickle import NUMPY_GLOBALS, restricted_load
from cabs_core.data.pool_files.table import OpenLlmSource

COMMIT = "2d47d1fd4e7870d095fcd3b4f8aa87185b5d8e3d"
FOLDER = f"somerstep/CARROT/{COMMIT}/data/open-llm-lb-v2"
MATRIX = (
    "new_leaderboard_processed_20241205.pickle",
    3_284_835,
    "becbe6bc270fb8e11b23bef99fa1c8ec86afbd7157578489a620c58a9367b5ed",
)
QUESTIONS = "data_QA.json"
_LARGEST_QUESTIONS = 2 << 30

#: per model: processes of its evaluation run, USD per 1M input tokens, mean tokens that the paper implies
RUNS: dict[str, tuple[int, float, float]] = {
    "01-ai/Yi-34B-Chat": (1, 0.8, 796.9),
    "NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO": (4, 0.6, 821.0),
    "Qwen/QwQ-32B-Preview": (4, 1.2, 742.0),
    "Qwen/Qwen2-72B-Instruct": (1, 0.9, 742.0),
    "Qwen/Qwen2.5-72B-Instruct": (2, 1.2, 742.0),
    "Qwen/Qwen2.5-7B-Instruct": (8, 0.3, 742.0),
    "alpindale/WizardLM-2-8x22B": (1, 1.2, 821.0),
    "deepseek-ai/deepseek-llm-67b-chat": (1, 0.9, 783.2),
    "google/gemma-2-27b-it": (8, 0.8, 766.6),
    "google/gemma-2-9b-it": (8, 0.3, 766.6),
    "google/gemma-2b-it": (8, 0.1, 766.6),
    "meta-llama/Llama-2-13b-chat-hf": (8, 0.3, 824.0),
    "meta-llama/Meta-Llama-3.1-70B-Instruct": (4, 0.9, 715.8),
    "mistralai/Mistral-7B-Instruct-v0.1": (8, 0.2, 821.0),
    "mistralai/Mistral-7B-Instruct-v0.2": (8, 0.2, 821.0),
    "mistralai/Mistral-7B-Instruct-v0.3": (8, 0.2, 821.0),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (4, 0.6, 821.0),
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": (2, 0.9, 715.8),
}
MODELS = tuple(RUNS)


def process_order(n: int, processes: int) -> np.ndarray:
    """Return the document numbers in the order in which a run on several processes writes them, `[n]`.

    >>> process_order(7, 3)
    array([0, 3, 6, 1, 4, 2, 5])
    """
    return np.concatenate([np.arange(rank, n, processes) for rank in range(processes)])


def undo_process_order(published: np.ndarray, processes: int) -> np.ndarray:
    """Return one task's values of a model in document order, `[n]`.

    Args:
        published: values in the order of a run on several processes, `[n]`.
        processes: number of processes of the run.
    """
    documents = np.empty_like(published)
    documents[process_order(len(published), processes)] = published
    return documents


def remote_files() -> tuple[RemoteFile, RemoteFile]:
    """Return the remote files of the matrix (pinned) and of the questions (with a lock record).

    The environment variable `CABS_GITHUB_RAW` names another raw-file server.
    """
    base = (os.environ.get("CABS_GITHUB_RAW") or "https://raw.githubusercontent.com").rstrip("/")
    name, size, sha256 = MATRIX
    return (
        RemoteFile(name, url=f"{base}/{FOLDER}/{name}", revision=COMMIT, size=size, sha256=sha256),
        RemoteFile(QUESTIONS, url=f"{base}/{FOLDER}/{QUESTIONS}", revision=COMMIT),
    )


def read(source: OpenLlmSource) -> RawOutcomes:
    """Return the leaderboard's outcomes from the downloaded or mirrored files, with costs.

    Rows are aligned between models unless `source.published_order` is True.

    A cost is the input tokens of the full prompt times the price. The models' tokenizers are not part of the
    data, so a prompt's token count is the mean count that the paper implies, times the ratio of the full
    prompt's number of characters to the mean number over all tasks.

    Raises:
        DataError: see `cabs_core.data.outcomes.download.fetch`; or the files do not fit each other.
    """
    matrix_file, questions_file = remote_files()
    matrix = fetch(matrix_file, mirror=source.mirror)
    cached = converted_path("openllm_v2", matrix.sha256)
    if not cached.is_file():
        convert(matrix.path, cached)
    frame = pd.read_parquet(cached)
    questions = fetch(questions_file, mirror=source.mirror)
    asked = read_questions(questions)
    tasks = frame["task"].to_numpy(dtype=np.str_)
    rows = []
    prompts: list[str] = []
    lengths: list[int] = []
    ids: list[str] = []
    for task in dict.fromkeys(tasks.tolist()):
        here = np.flatnonzero(tasks == task)
        texts, full = asked.get(task, ([], []))
        if len(texts) != len(here):
            raise DataError(
                f"{questions.path}: task {task!r} has {len(texts)} questions, the score matrix "
                f"{matrix.path.name} has {len(here)} rows: the two files do not belong together"
            )
        prompts += texts
        lengths += [len(text) for text in full]
        ids += [f"{task}.{i}" for i in range(len(here))]
        rows.append(here)
    scores = frame[list(MODELS)].to_numpy(dtype=np.float64)[np.concatenate(rows)]
    tasks = tasks[np.concatenate(rows)]
    if not source.published_order:
        for task in np.unique(tasks):
            here = np.flatnonzero(tasks == task)
            for j, model in enumerate(MODELS):
                scores[here, j] = undo_process_order(scores[here, j], RUNS[model][0])
    share = np.array(lengths) / np.mean(lengths)
    tokens = share[:, None] * np.array([RUNS[m][2] for m in MODELS])
    return RawOutcomes(
        query_ids=text_array(ids),
        prompts=prompts,
        tasks=tasks,
        arms=list(MODELS),
        scores=scores,
        costs=tokens * np.array([RUNS[m][1] for m in MODELS]) / PRICED_TOKENS,
        input_tokens=tokens,
        origin="Open LLM Leaderboard v2" + (" (published row order)" if source.published_order else ""),
        report={
            "rows_read": scores.size,
            "files": [matrix.record(), questions.record()],
            "row_order": "published" if source.published_order else "document",
        },
    )


def convert(pickle_path: Path, target: Path) -> None:
    """Write the matrix of a pickle as parquet, without the task IFEval.

    The table has the column `task`, a column for each of `MODELS`, and a row per task and position. The
    positions stay in the published order.

    Raises:
        DataError: the pickle is refused, or does not hold the expected matrix.
    """
    data = restricted_load(pickle_path, NUMPY_GLOBALS)
    if not isinstance(data, dict):
        raise DataError(f"{pickle_path} holds a {type(data).__name__}; expected a dict of tasks")
    frames = []
    for task, content in data.items():
        if "ifeval" in task:
            continue
        if not isinstance(content, dict) or not {"models", "correctness"} <= set(content):
            raise DataError(f"{pickle_path}, task {task!r}: expected a dict with `models` and `correctness`")
        names = [_model_name(model) for model in content["models"]]
        matrix = np.asarray(content["correctness"], dtype=np.float64)
        absent = [model for model in MODELS if model not in names]
        if absent or matrix.ndim != 2 or len(names) != len(matrix):
            raise DataError(
                f"{pickle_path}, task {task!r}: shape {matrix.shape} with {len(names)} models, absent "
                f"{absent}; expected a row for each of the {len(MODELS)} models"
            )
        if not np.isin(matrix, (0.0, 1.0)).all():
            raise DataError(f"{pickle_path}, task {task!r}: scores other than 0 and 1")
        columns = {model: matrix[names.index(model)] for model in MODELS}
        frames.append(pd.DataFrame({"task": task.removeprefix("leaderboard_"), **columns}))
    if not frames:
        raise DataError(f"{pickle_path} holds no task; expected the leaderboard's tasks")
    with atomic_path(target) as temporary:
        pd.concat(frames, ignore_index=True).to_parquet(temporary, compression="zstd")


def read_questions(file: VerifiedFile) -> dict[str, tuple[list[str], list[str]]]:
    """Return {task: (questions, full prompts)} in document order, without IFEval.

    The result is empty if the file holds JSON other than an object.

    Raises:
        DataError: the file is too large or not JSON, or a task lacks its two lists of texts of one length.
    """
    if file.size > _LARGEST_QUESTIONS:
        raise DataError(f"{file.path} has {file.size:,} bytes: this is not the file of questions")
    try:
        data = json.loads(file.path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{file.path} is not JSON: {error}") from None
    result = {}
    for task, content in data.items() if isinstance(data, dict) else ():
        if "ifeval" in task:
            continue
        lists: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in ("Qs", "Ps")]
        if not all(isinstance(part, list) and all(isinstance(t, str) for t in part) for part in lists):
            raise DataError(f"{file.path}, task {task!r}: expected lists of texts 'Qs' and 'Ps'")
        if len(lists[0]) != len(lists[1]):
            raise DataError(
                f"{file.path}, task {task!r}: {len(lists[0])} questions but {len(lists[1])} prompts"
            )
        result[task.removeprefix("leaderboard_")] = (lists[0], lists[1])
    return result


def _model_name(folder: str) -> str:
    """Return the name of a folder's model.

    >>> _model_name("open-llm-leaderboard/01-ai__Yi-34B-Chat-details")
    '01-ai/Yi-34B-Chat'
    """
    return folder.removeprefix("open-llm-leaderboard/").removesuffix("-details").replace("__", "/")
