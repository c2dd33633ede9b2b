"""Backfills begin and end when they are asked for and done, not at the daemon's next look.

Dagster's backfill daemon looks every 30 s, and nothing configures that. Here its pause ends early when a backfill is
new or changed its status (somebody cancels it), and when all runs that it launched have ended: then it launches the
next ones or is complete. Each of these ends one pause, so that a backfill that waits for something else costs no more
than before.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from dagster import DagsterInstance, RunsFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import BACKFILL_ID_TAG
from dagster._daemon.daemon import BackfillDaemon

_ACTIVE = BulkActionsFilter(
    statuses=[BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
)
#: Seconds between two looks of a pause.
_LOOK = 1.0
_loop = BackfillDaemon.core_loop


def install() -> None:
    """From now on, a backfill daemon that starts in this process works this way."""
    BackfillDaemon.core_loop = _attentive


def _attentive(self: BackfillDaemon, context: Any, shutdown: Any) -> Any:
    return _loop(self, context, Pause(shutdown, context.instance))


class Pause:
    """Takes the place of the event that ends the daemon, on which the daemon waits between two looks."""

    def __init__(self, shutdown: Any, instance: DagsterInstance):
        self._shutdown, self._instance = shutdown, instance
        self._seen: set[tuple] = set()

    def wait(self, seconds: float) -> bool:
        """Wait until then, or until the daemon is to end (True), or until a backfill needs it."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._shutdown.wait(min(_LOOK, left)):
                return True
            with suppress(Exception):  # a busy database: the daemon looks when its time has come
                if self._needed():
                    return False
        return self._shutdown.is_set()

    def _needed(self) -> bool:
        states = {
            (backfill.backfill_id, backfill.status, self._ended(backfill.backfill_id))
            for backfill in self._instance.get_backfills(filters=_ACTIVE)
        }
        active = {backfill_id for backfill_id, _, _ in states}
        before, self._seen = self._seen, states | {seen for seen in self._seen if seen[0] in active}
        return not states <= before

    def _ended(self, backfill_id: str) -> int:
        """How many runs a backfill has launched when all of them have ended; else 0."""
        tags = {BACKFILL_ID_TAG: backfill_id}
        if self._instance.get_runs_count(RunsFilter(tags=tags, statuses=list(NOT_FINISHED_STATUSES))):
            return 0
        return self._instance.get_runs_count(RunsFilter(tags=tags))
