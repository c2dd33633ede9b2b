"""Dagster's scheduler, named in dagster.yaml because daemons load it before they start: the place to prepare them."""

from __future__ import annotations

from typing import Any

from dagster._core.scheduler.scheduler import DagsterDaemonScheduler

from cabs_dagster import backfills


class LocalScheduler(DagsterDaemonScheduler):
    """The scheduler as it is; a daemon that loads it looks at backfills when there is something to do."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        backfills.install()
