"""What runs beside requests: following the log, the lease and its checkpoints, a bundle that was promoted."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cabs_core.errors import CabsError
from cabs_core.router.bundle import HEADER
from cabs_core.router.router import Router

LEASE_SECONDS = 15.0
logger = logging.getLogger("cabs.serve")


class Keeper:
    """A thread of one worker. `router` is the one to decide with; it changes when a bundle is promoted.

    Args:
        make: a router on the folder as it is now; given encoder and log of the router before it, to share them.
        every: seconds between looks at the log and the folder; checkpoint: seconds between checkpoints, which
            only the holder of the lease writes. tick: called at every look, with the router.
    """

    def __init__(
        self,
        folder: str | Path,
        make: Callable[..., Router],
        *,
        every: float = 0.5,
        checkpoint: float = 5.0,
        tick: Callable[[Router], None] = lambda router: None,
    ):
        self.folder, self.make = Path(folder), make
        self.every, self.checkpoint, self.tick = every, checkpoint, tick
        self.name = f"{os.uname().nodename}:{os.getpid()}"
        self._seen = self._stamp()
        self.router = make()
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cabs-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with a checkpoint where this worker holds the lease."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        if self.router.log.take_lease(self.name, 0.0):
            self.router.follow()
            self.router.checkpoint()
        self.router.log.close()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = (self.folder / HEADER).stat()
            return stat.st_ino, stat.st_mtime_ns
        except OSError:
            return None

    def _run(self) -> None:
        saved, version = time.monotonic(), self.router.learner.version
        while not self._stop.wait(self.every):
            try:
                if self._reload():
                    version = -1  # nothing that this router has learnt is saved
                self.router.follow()
                self.tick(self.router)
                due = time.monotonic() - saved >= self.checkpoint
                if self.router.log.take_lease(self.name, LEASE_SECONDS) and due:
                    if self.router.learner.version != version:
                        self.router.checkpoint()
                        version = self.router.learner.version
                    saved = time.monotonic()
                self.router.log.database.sync()
            except Exception as error:  # whatever it is, requests go on, and the next look may do better
                self.failures += 1
                logger.warning("keeping up with the log failed: %s", error)

    def _reload(self) -> bool:
        """Whether another router has taken the place of `router`."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        self._seen = stamp
        try:
            # requests may still use the old router, so its log stays open: the new one goes on with it
            fresh = self.make(encoder=self.router.encoder, log=self.router.log)
        except CabsError as error:
            self.failures += 1
            logger.error("the new bundle in %s is not used, the old one stays: %s", self.folder, error)
            return False
        logger.info("bundle %s takes the place of %s", fresh.manifest.id, self.router.manifest.id)
        self.router = fresh
        return True
