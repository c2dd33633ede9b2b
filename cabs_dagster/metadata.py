"""Metadata that an asset gives Dagster about its artifact: data version, figures, tables, images."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from cabs_core.base.errors import explained, is_transient, listed
from cabs_core.pipeline.artifacts import Chain, Made, make_artifact
from cabs_dagster.columns import written
from cabs_dagster.instance.recover import cancel
from cabs_dagster.names import POOLS, key, named
from cabs_dagster.resources import CabsResource
from cabs_dagster.specs import STAGE_TAG

#: how often a step is tried again after a transient error, and the seconds before the first time
RETRIES = 2
RETRY_SECONDS = 5
#: name of the metadata of an observation that says why a step made nothing
NOTHING_MADE = "nothing was made"
#: name of the metadata of an observation that says what was found about a deployed router
FOUND = "found"
#: characters
_LARGEST_TEXT = 4_000
_LARGEST_JSON = 20_000
_TYPES = {bool: "bool", int: "int", float: "float", str: "string"}


@contextmanager
def guarded() -> Iterator[None]:
    """Turn an error of a step into a retry, a failure or a cancelled run.

    A transient error (network, store, lock) is tried again `RETRIES` times. Any other error fails the step.
    An interrupt cancels the run. No asset has a `RetryPolicy`, which would turn an interrupt into a retry.
    """
    try:
        yield
    except (dg.Failure, dg.RetryRequested):
        raise
    except dg.DagsterExecutionInterruptedError:
        context = dg.OpExecutionContext.get()
        cancel(context.instance, context.run_id)
        raise
    except Exception as error:
        if is_transient(error):
            tried = dg.OpExecutionContext.get().retry_number
            wait = RETRY_SECONDS * 2**tried
            raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=wait) from error
        raise dg.Failure(description=explained(error), allow_retries=False) from error


def pool_of(context: dg.AssetExecutionContext) -> str:
    """Return the partition key of a run: the pool, or `pool|rho` of a replay.

    Raises:
        dg.Failure: the run has no partition, as after "Execute all" of the checks of an asset.
    """
    if not context.has_partition_key:
        known = list(context.instance.get_dynamic_partitions(named(POOLS)))
        raise dg.Failure(
            f"this run is of no pool: choose a partition ({listed(known) or 'there is no pool yet'}), or "
            "`cabs check NAME`, which evaluates every check of a pool",
            allow_retries=False,
        )
    return str(context.partition_key)


def table(
    rows: Sequence[Mapping[str, Any]], descriptions: Mapping[str, str] | None = None
) -> dg.TableMetadataValue:
    """Return rows with equal keys as a table of Dagster's metadata.

    Types are those of the values, and floats are rounded to five significant digits.
    """
    names = list(rows[0]) if rows else ["empty"]
    kinds = {
        name: next((_TYPES.get(type(row[name]), "string") for row in rows if row[name] is not None), "string")
        for name in names
        if rows
    }
    texts = descriptions or {}
    columns = [dg.TableColumn(n, kinds.get(n, "string"), description=texts.get(n)) for n in names]
    shown = [{k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in shown], dg.TableSchema(columns))


def image(name: str, data: bytes | str, kind: str = "png") -> dict[str, Any]:
    """Return {name: an image as Markdown metadata}.

    Args:
        data: bytes, or base64 text.
        kind: `png` or `svg+xml`.
    """
    if isinstance(data, str):
        text = data
    else:
        text = base64.b64encode(data).decode()
    return {name: dg.MetadataValue.md(f"![{name}](data:image/{kind};base64,{text})")}


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a stage's summary as metadata.

    Figures and texts stay as they are. Lists of rows, and mappings whose values are all figures or texts,
    become tables. Other values, such as nested, empty or None ones, become JSON. JSON of 20,000 characters or
    more becomes a text that is cut after 4,000.

    Args:
        summary: {words: value}. `rows` becomes the row count and `_images` images; other names with a leading
            underscore are left out.
    """
    values: dict[str, Any] = {}
    for name, value in summary.items():
        if name.startswith("_") or name == "rows":
            continue
        if isinstance(value, bool | int | float | str):
            values[name] = value
        elif (
            isinstance(value, Mapping)
            and value
            and all(isinstance(v, int | float | str) for v in value.values())
        ):
            values[name] = table([{"name": k, name: v} for k, v in value.items()])
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            values[name] = table(value)
        else:
            text = json.dumps(value, default=str)
            small = len(text) < _LARGEST_JSON
            if small:
                values[name] = dg.MetadataValue.json(json.loads(text))
            else:
                values[name] = text[:_LARGEST_TEXT]
    if "rows" in summary:
        values["dagster/row_count"] = int(summary["rows"])
    for name, text in summary.get("_images", {}).items():
        values |= image(name, text)
    return values


def plain_values(metadata: Mapping[str, dg.MetadataValue]) -> dict[str, Any]:
    """Return the values that `figures` made metadata of, as values that JSON can hold.

    A mapping is a mapping again, and rows are rows; numbers in them have the five digits of `table`.
    """
    values: dict[str, Any] = {}
    for name, value in metadata.items():
        if not isinstance(value, dg.TableMetadataValue):
            values[name] = value.value
            continue
        rows = [dict(record.data) for record in value.records]
        if [column.name for column in value.schema.columns] == ["name", name]:
            values[name] = {row["name"]: row[name] for row in rows}
        else:
            values[name] = rows
    return values


def provenance(made: Made, location: str) -> dict[str, Any]:
    """Return the metadata that every artifact has: its location, when it was made, and from what."""
    record = made.record
    return {
        "location": dg.MetadataValue.path(location),
        "computed": "reused, nothing changed" if made.reused else "computed in this run",
        "made at": record.created,
        "seconds to make": record.seconds,
        "size (bytes)": sum(entry["bytes"] for entry in record.files.values()),
        "code version": record.code_version,
        "inputs": dg.MetadataValue.json(record.inputs),
    }


def stage_result(
    context: dg.AssetExecutionContext,
    cabs: CabsResource,
    name: str,
    force: bool,
    device: str = "",
    *,
    policies: Sequence[str] = (),
) -> tuple[Chain, Made, dg.MaterializeResult[Any]]:
    """Make a stage of the run's pool unless it is up to date.

    Args:
        policies: of a stage that is made policy by policy: the policies to make. Empty: all.

    Returns:
        The chain of the pool, the artifact, and the materialization to yield.
    """
    with guarded():
        chain = cabs.chain(pool_of(context), policies)
        target = chain.stage(name)
        made = make_artifact(chain, target, cabs.options(context, force, device))
    record = made.record
    if made.reused:
        text = f"nothing changed, the artifact of {record.created} is used again"
    else:
        why = "; ".join(made.reasons[:3]) or "not made yet"
        text = f"made in {record.seconds:.1f} s, because: {why}"
    context.log.info(f"{record.described}: {text}")
    result: dg.MaterializeResult[Any] = dg.MaterializeResult(
        asset_key=key(name),
        data_version=dg.DataVersion(record.content),
        metadata=provenance(made, chain.store.location(target.parts))
        | figures(target.definition.summary(record).shown())
        | written(name, made.folder, record.files),
    )
    return chain, made, result


def left_out(
    context: dg.AssetExecutionContext, cabs: CabsResource, name: str
) -> dg.MaterializeResult[Any] | None:
    """Return the result of a stage that the pool does not have, or None if the pool has it.

    The stage cannot be skipped: in Dagster 1.13 a step without an output skips all that is behind it in the
    same run, which is the rest of the pool's stages.
    """
    with guarded():
        chain = cabs.chain(pool_of(context))
    if name in chain.stages:
        return None
    return nothing_to_do(context, name, "this pool collects nothing")


def runs_in_job(context: dg.AssetExecutionContext, stage: str) -> bool:
    """Return True if the tag `STAGE_TAG` of the run, which runs of one job alone carry, names the stage."""
    return context.run.tags.get(STAGE_TAG) == stage


def nothing_to_do(context: dg.AssetExecutionContext, name: str, why: str) -> dg.MaterializeResult[Any]:
    """Return a materialization that says why a step made nothing, for an asset that cannot be skipped."""
    context.log.info(f"{name}: {why}")
    return dg.MaterializeResult(
        asset_key=key(name), data_version=dg.DataVersion("nothing"), metadata={"nothing to do": why}
    )


def observe_nothing(context: dg.AssetExecutionContext, name: str, why: str) -> None:
    """Record that a step made nothing, and why, as an observation of an asset that may be skipped."""
    context.log.info(f"{name}: {why}")
    context.log_event(
        dg.AssetObservation(
            key(name),
            partition=context.partition_key,
            description=why[:500],
            metadata={NOTHING_MADE: why},
        )
    )
