"""RouterBench (Hu et al. 2024), 0-shot: 36,497 prompts, 11 models, graded scores, the source's own USD.

The published file is a pandas pickle. It is read once, after its checksum and without running code, and kept
as parquet without the response texts.
"""

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from cabs_core.base.atomic import atomic_path
from cabs_core.base.errors import DataError
from cabs_core.data.outcomes.download import RemoteFile, fetch
from cabs_core.data.outcomes.published import PUBLISHED
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.sources.converted import converted_path
from cabs_core.data.outcomes.table import text_array
from cabs_core.data.outcomes.unpickle import PANDAS_GLOBALS, restricted_load
from cabs_core.data.pool_files.table import PublishedSource
from cabs_core.data.tables.cells import Place, number_column, text_column

FILE = RemoteFile(
    name="routerbench_0shot.pkl",
    repo="withmartian/routerbench",
    revision="784021482c3f320c6619ed4b3bb3b41a21424fcb",
    size=99_567_659,
    sha256="ba4f77f19517610a707c374e99322d7750c30fc4ae7ff5527888595a1e65d36d",
)
MODELS = tuple(row.source_name for row in PUBLISHED["routerbench"])
_COST = "{}|total_cost"


def read(source: PublishedSource) -> RawOutcomes:
    """Return RouterBench's outcomes from the published file, which is downloaded and converted once.

    Args:
        source: the source section of a pool file. Only `source.mirror` is read: a local folder that holds the
            published file, or None to download it.

    Raises:
        DataError: see `cabs_core.data.outcomes.download.fetch`; or the file does not hold the expected table.
    """
    file = fetch(FILE, mirror=source.mirror)
    cached = converted_path("routerbench", file.sha256)
    if not cached.is_file():
        convert(file.path, cached)
    frame = pq.read_table(cached).to_pandas()
    origin = f"RouterBench ({file.path.name})"
    scores = [number_column(frame[m], "score", Place(origin, 1, m)) for m in MODELS]
    costs = [number_column(frame[_COST.format(m)], "cost", Place(origin, 1, _COST.format(m))) for m in MODELS]
    return RawOutcomes(
        query_ids=text_array(
            text_column(frame["sample_id"], "query_id", Place(origin, 1, "sample_id")).tolist()
        ),
        prompts=text_column(frame["prompt"], "prompt", Place(origin, 1, "prompt")).tolist(),
        tasks=text_array(text_column(frame["eval_name"], "task", Place(origin, 1, "eval_name")).tolist()),
        arms=list(MODELS),
        scores=np.column_stack(scores),
        costs=np.column_stack(costs),
        origin=origin,
        report={"rows_read": len(frame) * len(MODELS), "files": [file.record()]},
    )


def convert(pickle_path: Path, target: Path) -> None:
    """Write the needed columns of the pickle as parquet, with each prompt as `unwrap_prompt` returns it.

    Raises:
        DataError: the pickle is refused, holds no data frame, or lacks a column.
        ValueError: a score or a cost is no number.
    """
    table = restricted_load(pickle_path, PANDAS_GLOBALS)
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"{pickle_path} holds a {type(table).__name__}; expected the RouterBench table")
    columns = ["sample_id", "prompt", "eval_name", *MODELS, *(_COST.format(m) for m in MODELS)]
    absent = [column for column in columns if column not in table.columns]
    if absent:
        raise DataError(f"{pickle_path}: no column {absent[0]!r}; columns are {list(table.columns)[:40]}")
    frame = pd.DataFrame(
        {"sample_id": table["sample_id"].astype("str"), "eval_name": table["eval_name"].astype("str")}
    )
    frame["prompt"] = pd.array([unwrap_prompt(str(p)) for p in table["prompt"]], dtype="str")
    for column in columns[3:]:
        frame[column] = pd.to_numeric(table[column], errors="raise").astype(np.float64)
    with atomic_path(target) as temporary:
        frame.to_parquet(temporary, compression="zstd")


def unwrap_prompt(text: str) -> str:
    """Return the strings of which `text` is the `repr` of a list, joined by blank lines.

    Text that is not the `repr` of a non-empty list of strings is returned as it is.
    """
    if text.startswith("[") and text.endswith("]"):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            return "\n\n".join(value)
    return text
