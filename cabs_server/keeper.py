"""What runs beside requests: following the log, the lease and its checkpoints, a bundle that was promoted."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cabs_core.data.events.log import SHARED_TEXT
from cabs_core.router.bundle import HEADER
from cabs_core.router.router import Router

LEASE_SECONDS = 15.0
#: seconds after which a bundle or file that could not be used is tried again: what it lacked may be there now
AGAIN = 5.0
#: how much longer than it took it rests before it learns the log again: many retractions slow nobody
RESTS = 3.0
logger = logging.getLogger("cabs.serve")


class Keeper:
    """A thread of one worker. `router` is the one to decide with; it changes when a bundle is promoted.

    Args:
        make: a router on the folder as it is now; given encoder and log of the one before.
        also: a further file that `make` reads; a router is made again when it changes.
        every: seconds between looks at the log and the folder; checkpoint: seconds between checkpoints, which
            only the holder of the lease writes. tick: called at every look, with the router and whether this
            worker holds the lease.

    Attributes:
        waits: why a bundle or file that lies there is not used, in words; None: all is.
    """

    def __init__(
        self,
        folder: str | Path,
        make: Callable[..., Router],
        *,
        also: str | Path | None = None,
        every: float = 0.5,
        checkpoint: float = 5.0,
        tick: Callable[[Router, bool], None] = lambda router, leads: None,
    ):
        self.folder, self.make = Path(folder), make
        self.files = [self.folder / HEADER, *([] if also is None else [Path(also)])]
        self.waits: str | None = None
        self.every, self.checkpoint, self.tick = every, checkpoint, tick
        self.name = f"{os.uname().nodename}:{os.getpid()}"
        self._seen, self._again = self._stamp(), 0.0
        self.router = make()
        self.failures = 0
        self._stop = threading.Event()
        self._relearning: threading.Thread | None = None
        self._rests_until = 0.0
        self._said_shared: str | None = None
        self._thread = threading.Thread(target=self._run, name="cabs-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, also: Callable[[], None] = lambda: None) -> None:
        """End, with a checkpoint where this worker has the lease. also: ends what `tick` began."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        also()
        if self.router.log.take_lease(self.name, 0.0):
            self.router.follow(again=False)
            self.router.checkpoint()
        self.router.log.close()

    def _follow(self) -> None:
        """Learn what is new; where something was taken back, all of the log again, once for many."""
        router = self.router
        router.follow(again=False)
        busy = self._relearning is not None and self._relearning.is_alive()
        if busy or time.monotonic() < self._rests_until or not router.outdated:
            return

        def relearn() -> None:
            begin = time.monotonic()
            try:
                router.follow()
            except Exception as error:  # the next look may do better
                self.failures += 1
                logger.warning("learning the log again failed: %s", error)
            self._rests_until = time.monotonic() + RESTS * (time.monotonic() - begin)

        self._relearning = threading.Thread(target=relearn, name="cabs-relearn", daemon=True)
        self._relearning.start()

    def _note_shared_text(self) -> None:
        """Tell `doctor` through the log when most prompts begin to share their text, and when they stop."""
        sentence = self.router.shared_text.sentence()
        if (sentence is None) == (self._said_shared is None):
            return
        self.router.log.note(SHARED_TEXT, json.dumps([] if sentence is None else [sentence]))
        if sentence is not None:
            logger.warning("%s", sentence)
        self._said_shared = sentence

    def _stamp(self) -> list[tuple[int, int, int]] | None:
        """What changes when a file does; None: one is not there now."""
        try:
            stats = [path.stat() for path in self.files]
            return [(s.st_ino, s.st_mtime_ns, s.st_size) for s in stats]
        except OSError:
            return None

    def _run(self) -> None:
        saved, version = time.monotonic(), self.router.learner.version
        while not self._stop.wait(self.every):
            try:
                if self._reload():
                    version = -1  # nothing that this router has learnt is saved
                self._follow()
                leads = self.router.log.take_lease(self.name, LEASE_SECONDS)
                self._note_shared_text()
                self.tick(self.router, leads)
                if leads and time.monotonic() - saved >= self.checkpoint:
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
        again = self.waits is not None and time.monotonic() >= self._again
        if stamp is None or (stamp == self._seen and not again):
            return False
        self._seen = stamp
        try:
            # requests may still use the old router, so its log stays open: the new one goes on with it
            fresh = self.make(encoder=self.router.encoder, log=self.router.log)
        except Exception as error:  # a damaged bundle, a model without an endpoint, a log that is away
            text = f"a change of {' or '.join(map(str, self.files))} is not used, the old stays: {error}"
            if text != self.waits:
                self.failures += 1
                logger.error("%s", text)
            self.waits, self._again = text, time.monotonic() + AGAIN
            return False
        self.waits = None
        now, before = fresh.manifest.id, self.router.manifest.id
        said = "is read again" if now == before else f"takes the place of {before}"
        logger.info("bundle %s %s", now, said)
        self.router = fresh
        return True
