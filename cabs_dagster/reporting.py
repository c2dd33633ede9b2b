"""What an asset tells Dagster about the artifact it made: metadata, data version, tables, column lineage."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from cabs_dagster.making import Made
from cabs_dagster.planning import Chain

_LARGEST_TEXT = 4000
#: Folder of the reports in the store.
REPORTS = "reports"
_LARGEST_IMAGE = 100_000


def table_metadata(columns: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """`dagster/column_schema` from {column: (type, description)}."""
    schema = dg.TableSchema(
        columns=[dg.TableColumn(name, kind, description=text) for name, (kind, text) in columns.items()]
    )
    return {"dagster/column_schema": schema}


def lineage(columns: Mapping[str, Sequence[tuple[str | Sequence[str], str]]]) -> dict[str, Any]:
    """`dagster/column_lineage` from {column: [(asset, column of that asset), ...]}."""
    deps = {
        name: [
            dg.TableColumnDep(
                asset_key=dg.AssetKey(key if isinstance(key, str) else list(key)), column_name=column
            )
            for key, column in sources
        ]
        for name, sources in columns.items()
    }
    return {"dagster/column_lineage": dg.TableColumnLineage(deps)}


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Summary of a record as metadata values; names with a leading underscore are internal."""
    values: dict[str, Any] = {}
    for name, value in summary.items():
        if name.startswith("_") or name in ("rows", "parts"):
            continue
        if isinstance(value, bool | int | float | str):
            values[name] = value
        elif (
            isinstance(value, Mapping)
            and value
            and all(isinstance(v, int | float | str) for v in value.values())
        ):
            values[name] = dg.MetadataValue.md(markdown_table(["", name], [[k, v] for k, v in value.items()]))
        else:
            text = json.dumps(value, default=str)
            values[name] = (
                dg.MetadataValue.json(json.loads(text)) if len(text) < 20_000 else text[:_LARGEST_TEXT]
            )
    return values


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]], limit: int = 60) -> str:
    """A small Markdown table; rows beyond the limit are counted, not shown."""

    def cell(value: Any) -> str:
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell(v) for v in row) + " |" for row in rows[:limit]]
    if len(rows) > limit:
        lines.append(f"\n... and {len(rows) - limit} more")
    return "\n".join(lines)


def inline(images: Mapping[str, bytes]) -> dict[str, str]:
    """PNG images of at most 100 kB as base64 text, to be kept in a record."""
    return {n: base64.b64encode(data).decode() for n, data in images.items() if len(data) < _LARGEST_IMAGE}


def image_metadata(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The images of a record as Markdown metadata."""
    return {
        name: dg.MetadataValue.md(f"![{name}](data:image/png;base64,{data})")
        for name, data in summary.get("_images", {}).items()
    }


def metadata_of(chain: Chain, made: Made) -> dict[str, Any]:
    """Metadata that every artifact has: where it lies, when and from what it was made, its figures."""
    record = made.record
    size = sum(entry["bytes"] for entry in record.files.values())
    stage, _, policy = record.stage.partition("/")
    parts = (REPORTS if stage == "report" else stage, *record.partition.split("|"), policy)
    values: dict[str, Any] = {
        "location": dg.MetadataValue.path(chain.store.location(tuple(part for part in parts if part))),
        "computed": "reused, nothing changed" if made.reused else "computed in this run",
        "made at": record.created,
        "seconds to make": record.seconds,
        "size (bytes)": size,
        "code version": record.code_version,
        "inputs": dg.MetadataValue.json(record.inputs),
    }
    if "rows" in record.summary:
        values["dagster/row_count"] = int(record.summary["rows"])
    return values | figures(record.summary)


def result(
    context, chain: Chain, made: Made, *, asset_key: dg.AssetKey | None = None, **more: Any
) -> dg.MaterializeResult:
    """The materialization of an artifact: its content hash as data version and its metadata."""
    record = made.record
    if made.reused:
        context.log.info(
            f"{record.describe()}: nothing changed, the artifact of {record.created} is used again"
        )
    return dg.MaterializeResult(
        asset_key=asset_key,
        data_version=dg.DataVersion(record.content),
        metadata={**more.pop("metadata", {}), **metadata_of(chain, made)},
        **more,
    )
