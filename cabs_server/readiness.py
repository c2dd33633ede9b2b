"""The state of a server for an orchestrator, and the problems behind the state for administrators."""

import asyncio
import shutil
import time
from pathlib import Path

from cabs_server.forwarding import Forwarder
from cabs_server.joins import Joins
from cabs_server.keeper import Keeper

#: seconds that a check of the log may take
PATIENCE = 2.0
#: seconds for which the result of that check is used again, since the check writes to the log
HOLDS = 1.0
#: free bytes on the log's disk below which the disk is a problem
SCARCE = 64 << 20


class Readiness:
    """A check of whether requests would be answered now.

    Args:
        forwards: True if the server calls upstreams.
    """

    def __init__(self, keeper: Keeper, forwarder: Forwarder, joins: Joins, *, forwards: bool):
        self.keeper = keeper
        self.forwarder = forwarder
        self.joins = joins
        self.forwards = forwards
        self._log_problems: list[str] = []
        self._checked_until = 0.0
        self._lock = asyncio.Lock()

    async def state(self) -> tuple[str, list[str]]:
        """Return the state and its problems as sentences.

        The state is `ready`, `degraded` (requests are answered, with problems) or `not ready` (the server
        calls upstreams and the breakers of all models are open, or decisions cannot be logged and
        `fail_closed` is set). The log was checked at most `HOLDS` seconds ago.
        """
        async with self._lock:
            if time.monotonic() >= self._checked_until:
                self._log_problems = await self._check_log()
                self._checked_until = time.monotonic() + HOLDS
            log_problems = self._log_problems
        breakers = self.forwarder.breakers
        left_alone = {name: breaker for name, breaker in breakers.items() if breaker.state == "open"}
        problems = [f"{text}: {self._consequence()}" for text in log_problems]
        problems += [f"{name} is left alone: {breaker.reason}" for name, breaker in left_alone.items()]
        if self.keeper.reload_problem is not None:
            problems.append(self.keeper.reload_problem)
        problems += self.joins.problems
        disk_problem = self._disk_problem()
        if disk_problem is not None:
            problems.append(disk_problem)
        problems += self.keeper.router.budget_problems()
        has_no_model = self.forwards and len(left_alone) == len(breakers)
        if has_no_model or (log_problems and self.forwarder.settings.fail_closed):
            return "not ready", problems
        return ("degraded" if problems else "ready"), problems

    def _consequence(self) -> str:
        """Return in words what happens to requests while the log cannot be used.

        Requests are refused if `fail_closed` is set. Otherwise the fallback model answers them.
        """
        if self.forwarder.settings.fail_closed:
            return "requests get 503"
        return "the fallback model answers, nothing is learnt"

    async def _check_log(self) -> list[str]:
        """Write a note to the log, and return the problems of the log and of recent decisions."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.forwarder.worker.run("", self.keeper.router.log.check)
        except TimeoutError:
            return [f"the event log does not answer within {PATIENCE:g} s"]
        except Exception as error:  # any error means that decisions cannot be logged
            return [f"the event log cannot be used ({error})"]
        if self.forwarder.own_breaker.state == "open":
            return [f"decisions failed ({self.forwarder.own_breaker.reason})"]
        return []

    def _disk_problem(self) -> str | None:
        """Return a sentence if the log is a file whose disk is nearly full, otherwise None."""
        log = self.keeper.router.log
        if log.dialect == "postgres" or log.place == ":memory:":
            return None
        try:
            disk = shutil.disk_usage(Path(log.place).absolute().parent)
        except OSError:
            return None
        if disk.free >= min(SCARCE, disk.total // 50):
            return None
        return f"the event log's disk has {disk.free >> 20} MiB free: make room, or run `cabs log compact`"
