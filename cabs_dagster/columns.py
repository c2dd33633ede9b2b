"""Columns of tables in Dagster's metadata: those that were written, with what they hold and come from."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from cabs_dagster.names import key
from dbt_like_sql.artifacts import used_sources

#: {stage: {column: description}} of the columns that the schema.yml of the SQL models does not describe
_TEXTS = {
    "answers": {
        "query_id": "Identifier of the prompt",
        "prompt": "Text of the prompt",
        "task": "Task family of the prompt",
        "split": "train, validation or test, where the prompts say so",
        "model": "Name of the model that was asked",
        "key": "Hash of the request, under which the answer is kept",
        "state": "answered, truncated, refused or rejected",
        "text": "The answer; null where only hashes are kept",
        "sha": "SHA-256 of the answer",
        "finish": "Why the model ended, as the provider says",
        "n_input_tokens": "Input tokens",
        "n_output_tokens": "Output tokens",
        "cost": "What the call cost, USD",
        "latency": "Seconds of the call",
        "estimated": "Whether tokens were counted here, because the provider did not say them",
    },
    "scores": {
        "query_id": "Identifier of the prompt",
        "model": "Name of the model that was asked",
        "score": "Score of the answer, 0 to 1; null where it has none",
    },
    "outcomes": {
        "query_id": "Identifier of the query, unique",
        "prompt": "Text of the prompt",
        "task": "Task family of the query",
        "model": "Name of the model (arm)",
        "score": "Score of the model's answer, 0 to 1",
        "cost": "Cost of the call in USD, at least 0",
        "n_input_tokens": "Input tokens; null when unknown",
        "n_output_tokens": "Output tokens; null when unknown",
        "latency": "Seconds of the call; null when unknown",
        "source_split": "train, validation or test, as the source says",
        "session": "Conversation of the query",
        "later_scores": "Score of the model's later version, 0 to 1",
        "later_costs": "Cost of a call of the model's later version, USD",
        "later_latencies": "Seconds of a call of the model's later version",
        "answered": "1 where the outcome is in the source, 0 where it is predicted",
        "propensities": "Probability with which the log's router drew the model",
    },
    "splits": {
        "query_id": "Identifier of the query",
        "split": "train, validation or test",
    },
}


def schema(columns: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the metadata `dagster/column_schema` from {column: (type, description)}."""
    listed = [dg.TableColumn(name, kind, description=text or None) for name, (kind, text) in columns.items()]
    return {"dagster/column_schema": dg.TableSchema(listed)}


def lineage(columns: Mapping[str, Sequence[tuple[dg.AssetKey | str, str]]]) -> dict[str, Any]:
    """Return the metadata `dagster/column_lineage` from {column: [(asset, column of that asset), ...]}."""
    deps = {
        name: [
            dg.TableColumnDep(asset_key=key(up) if isinstance(up, str) else up, column_name=c)
            for up, c in sources
        ]
        for name, sources in columns.items()
    }
    return {"dagster/column_lineage": dg.TableColumnLineage(deps)}


def declared(stage: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema of a stage's table as metadata, with the descriptions of its columns.

    A column of which no description is known has none.

    Args:
        columns: {column: type} of the table.
    """
    texts = _texts(stage)
    return schema({name: (kind, texts.get(name, "")) for name, kind in columns.items()})


def written(stage: str, folder: Path, files: Iterable[str]) -> dict[str, Any]:
    """Return the schema of the tables that a stage wrote into a folder, as metadata.

    The tables are the files that end in `.parquet`. One schema lists the columns of all of them. Return an
    empty dict if there is no table.

    Args:
        files: names of files in the folder. Names of files that do not exist are ignored.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  (loading the code location stays quick)

    kinds: dict[str, str] = {}
    # `queries` before `outcomes`: the prompts before what was made of them
    for name in sorted(files, reverse=True):
        if name.endswith(".parquet") and (folder / name).is_file():
            kinds |= {field.name: str(field.type) for field in pq.read_schema(folder / name)}
    if kinds:
        return declared(stage, kinds)
    return {}


def _texts(stage: str) -> Mapping[str, str]:
    """Return {column: description} of the tables of a stage."""
    tables = [source for source in used_sources() if source.path.split("/")[0] == stage]
    return {c.name: c.description for source in tables for c in source.columns} | _TEXTS.get(stage, {})
