"""SPROUT (CARROT, Somerstep et al. 2025): 44,000 prompts, 13 models, judged scores, token counts.

Costs are tokens x list prices (USD per 1M tokens). The source's own train / validation / test split is kept.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.errors import DataError
from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.outcomes.download import RemoteFile, VerifiedFile, fetch
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.table import text_array
from cabs_core.data.pool_files.table import PublishedSource
from cabs_core.data.tables.cells import Place, number_column

REPO = "CARROT-LLM-Routing/SPROUT"
FILES = {
    "train": tuple(f"data/train-0000{i}-of-00003.parquet" for i in range(3)),
    "validation": ("data/validation-00000-of-00001.parquet",),
    "test": ("data/test-00000-of-00001.parquet",),
}
#: USD per 1M tokens (input, output)
PRICES = {
    "aws-claude-3-5-sonnet-v1": (3.0, 15.0),
    "aws-titan-text-premier-v1": (0.8, 3.2),
    "openai-gpt-4o": (2.5, 10.0),
    "openai-gpt-4o-mini": (0.15, 0.6),
    "wxai-granite-3-2b-instruct-8k-max-tokens": (0.1, 0.1),
    "wxai-granite-3-8b-instruct-8k-max-tokens": (0.2, 0.2),
    "wxai-llama-3-1-70b-instruct": (0.9, 0.9),
    "wxai-llama-3-1-8b-instruct": (0.2, 0.2),
    "wxai-llama-3-2-1b-instruct": (0.06, 0.06),
    "wxai-llama-3-2-3b-instruct": (0.06, 0.06),
    "wxai-llama-3-3-70b-instruct": (0.9, 0.9),
    "wxai-llama-3-405b-instruct": (3.5, 3.5),
    "wxai-mixtral-8x7b-instruct-v01": (0.6, 0.6),
}
MODELS = tuple(PRICES)
#: {field of a model's struct: canonical column}
_FIELDS = {
    "score": "score",
    "num_input_tokens": "n_input_tokens",
    "num_output_tokens": "n_output_tokens",
}


def read(source: PublishedSource) -> RawOutcomes:
    """Return SPROUT's outcomes from its five files, which are verified after the download.

    A call without token counts is a missing cell: its score is left out, since its cost is unknown.

    Raises:
        DataError: see `cabs_core.data.outcomes.download.fetch`; or a column is missing or a value wrong.
    """
    parts = []
    records = []
    for split, names in FILES.items():
        for name in names:
            file = fetch(RemoteFile(name=name, repo=REPO), mirror=source.mirror)
            parts.append(_read_part(file, split))
            records.append(file.record())
    cells = {field: np.vstack([part[field] for part in parts]) for field in _FIELDS}
    prices = np.array([PRICES[m] for m in MODELS])
    costs = (
        cells["num_input_tokens"] * prices[:, 0] + cells["num_output_tokens"] * prices[:, 1]
    ) / PRICED_TOKENS
    # a call whose tokens were not recorded has no cost: it is a missing cell, not a free call
    priceless = np.isnan(costs) & ~np.isnan(cells["score"])
    cells["score"][priceless] = np.nan
    splits = [split for part in parts for split in part["split"]]
    numbers = [i for split in FILES for i in range(splits.count(split))]
    return RawOutcomes(
        query_ids=text_array([f"{split}.{i}" for split, i in zip(splits, numbers, strict=True)]),
        prompts=[prompt for part in parts for prompt in part["prompt"]],
        tasks=text_array([task for part in parts for task in part["task"]]),
        arms=list(MODELS),
        scores=cells["score"],
        costs=costs,
        input_tokens=cells["num_input_tokens"],
        output_tokens=cells["num_output_tokens"],
        source_splits=text_array(splits),
        origin="SPROUT",
        report={
            "rows_read": len(splits) * len(MODELS),
            "cells_without_tokens": int(priceless.sum()),
            "files": records,
        },
    )


def _read_part(file: VerifiedFile, split: str) -> dict[str, Any]:
    """Return the needed columns of one file: split, task, prompt, and an array `[m, K]` per field of
    `_FIELDS`.

    Raises:
        DataError: the file cannot be read, a column is missing, a text is empty, or a number is out of range.
    """
    columns = ["dataset", "prompt", *(f"{model}.{field}" for model in MODELS for field in _FIELDS)]
    try:
        table = pq.ParquetFile(file.path).read(columns=columns)  # keeps structs, with the fields asked for
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.path} cannot be read as parquet: {error}") from None
    part: dict[str, Any] = {"split": [split] * table.num_rows}
    for column, name in (("dataset", "task"), ("prompt", "prompt")):
        if column not in table.column_names:
            raise DataError(f"{file.path}: no column {column!r}; columns are {table.column_names}")
        part[name] = table[column].to_pylist()
        if None in part[name] or "" in part[name]:
            row = next(i for i, value in enumerate(part[name]) if not value)
            raise DataError(f"{file.path}, row {row + 1}: {column} is missing; expected a text")
    for field in _FIELDS:
        part[field] = np.column_stack([_field(table, file, model, field) for model in MODELS])
    return part


def _field(table: pa.Table, file: VerifiedFile, model: str, field: str) -> np.ndarray:
    """Return a field of a model's struct for each row, `[m]`, nan where the struct or the field is null.

    Raises:
        DataError: the table lacks the column, the column has no such field, or a value is out of range.
    """
    if model not in table.column_names:
        raise DataError(f"{file.path}: no column {model!r}; columns are {table.column_names}")
    column = table[model].combine_chunks()
    if not pa.types.is_struct(column.type) or column.type.get_field_index(field) < 0:
        raise DataError(f"{file.path}, column {model!r}: expected a struct with {', '.join(_FIELDS)}")
    values = pa.compute.struct_field(column, field).to_pandas()
    return number_column(values, _FIELDS[field], Place(str(file.path), 1, f"{model}.{field}"))
