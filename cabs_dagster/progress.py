"""The logger `progress`, by which `cabs run` prints one line for each thing that a step says."""

import logging
import sys

import dagster as dg

from cabs_core.base.errors import listed
from cabs_dagster.instance.recover import recover

#: events that follow from a failed step: `cabs run` ends with one error that holds the text of the step
_FAILURES = (
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
    dg.DagsterEventType.RUN_FAILURE,
)


def _progress(context: dg.InitLoggerContext) -> logging.Logger:
    """Return a logger that prints to standard error."""
    logger = logging.Logger("progress", logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_news)
    handler.setFormatter(_Line())
    logger.addHandler(handler)
    return logger


progress_logger = dg.LoggerDefinition(
    _progress, description="Prints what the steps of a run say, one line each: for `cabs run`."
)


def _event_of(record: logging.LogRecord) -> dg.DagsterEvent | None:
    """Return the Dagster event that a log record reports, or None if the record reports none."""
    event: dg.DagsterEvent | None = getattr(record, "dagster_meta", {}).get("dagster_event")
    return event


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log record is printed.

    A record of level INFO or above is printed, and so is one that says that a step waits for a slot. Events
    in `_FAILURES` are not.
    """
    event = _event_of(record)
    if event is not None and event.event_type in _FAILURES:
        return False
    return record.levelno >= logging.INFO or bool(_pool_waited_for(record))


def _pool_waited_for(record: logging.LogRecord) -> str:
    """Return the concurrency pool whose slot a step waits for, or an empty text if no step waits."""
    event = _event_of(record)
    if event is None or event.event_type != dg.DagsterEventType.ENGINE_EVENT:
        return ""
    pool = event.engine_event_data.metadata.get("pool")
    if isinstance(pool, dg.PoolMetadataValue):
        return str(pool.value)
    return ""


class _Line(logging.Formatter):
    """Formatter of the lines that `cabs run` prints for log records."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, indented by two spaces, or an empty text if the message is blank.

        The line is the first line of the message, without the job, run and step before it. For a step that
        waits for a slot, the line is the sentence of `waiting_for` instead.
        """
        pool = _pool_waited_for(record)
        if pool:
            return f"  {waiting_for(pool)}"
        message = record.getMessage().split(" - ", 3)[-1]
        if message.strip():
            return f"  {message.splitlines()[0]}"
        return ""


def waiting_for(pool: str) -> str:
    """Return a sentence that names the runs which hold the slots of a concurrency pool, and what to do.

    Slots of killed processes are freed first.
    """
    with dg.DagsterInstance.get() as instance:
        recover(instance)
        slots = instance.event_log_storage.get_concurrency_info(pool).claimed_slots
        runs = [instance.get_run_by_id(slot.run_id) for slot in slots]
    names = [f"run {run.run_id} of {run.job_name} ({run.status.value.lower()})" for run in runs if run]
    return (
        f"waiting for a slot of pool {pool}, held by {listed(names) or 'a run that is ending'}: this goes "
        "on when that step ends. Where its process is gone, the daemon of `cabs ui` frees the slot, as does "
        "ending the run in the UI"
    )
