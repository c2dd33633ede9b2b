"""Whether requests would be answered, for an orchestrator; what is wrong, for people who may know."""

import asyncio
import shutil
import time
from pathlib import Path

from cabs_server.forwarding import Forwarder
from cabs_server.joins import Joins
from cabs_server.keeper import Keeper

#: seconds that the log may take, and that its answer holds: whoever asks often does not write often
PATIENCE, HOLDS = 2.0, 1.0
#: free space of the log's disk below which it is told, bytes
SCARCE = 64 << 20


class Readiness:
    """Args: forwards: whether there are upstreams."""

    def __init__(self, keeper: Keeper, forwarder: Forwarder, joins: Joins, *, forwards: bool):
        self.keeper, self.forwarder, self.joins, self.forwards = keeper, forwarder, joins, forwards
        self._of_log: list[str] = []
        self._until, self._lock = 0.0, asyncio.Lock()

    async def state(self) -> tuple[str, list[str]]:
        """(ready, degraded: it answers, with problems, or not ready; the problems), of the log as it was at
        most HOLDS seconds ago."""
        forwarder, keeper = self.forwarder, self.keeper
        async with self._lock:
            if time.monotonic() >= self._until:
                self._of_log, self._until = await self._log(), time.monotonic() + HOLDS
            log = self._of_log
        away = [(name, b.reason) for name, b in forwarder.breakers.items() if b.state == "open"]
        problems = [f"{text}: {self._follows()}" for text in log]
        problems += [f"{name} is left alone: {reason}" for name, reason in away]
        ours = (keeper.waits, *self.joins.problems, self._scarce(), *keeper.router.problems())
        problems += [text for text in ours if text]
        none_left = self.forwards and len(away) == len(forwarder.breakers)
        if none_left or (log and forwarder.settings.fail_closed):
            return "not ready", problems
        return "degraded" if problems else "ready", problems

    def _follows(self) -> str:
        return (
            "requests get 503"
            if self.forwarder.settings.fail_closed
            else "the fallback model answers, nothing is learnt"
        )

    async def _log(self) -> list[str]:
        """What is wrong with the log or its disk: it is written to, and the last decisions are heard."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.forwarder.worker.run("", self.keeper.router.log.check)
        except TimeoutError:
            return [f"the event log does not answer within {PATIENCE:g} s"]
        except Exception as error:  # whatever it is: it cannot be used
            return [f"the event log cannot be used ({error})"]
        if self.forwarder.own_breaker.state == "open":
            return [f"decisions failed ({self.forwarder.own_breaker.reason})"]
        return []

    def _scarce(self) -> str | None:
        """That the disk of the log is nearly full."""
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
