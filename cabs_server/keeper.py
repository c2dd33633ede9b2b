"""The background work of one server process or of one LiteLLM proxy.

A keeper's thread learns what other processes log, takes the lease of the log, writes checkpoints while this
process holds the lease, and loads a bundle or an upstreams file that has changed.
"""

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
#: seconds after which a change that could not be used is tried again, since what was missing may be there now
RETRY_SECONDS = 5.0
#: pause after the whole log was learnt again, as a multiple of the duration of that pass
PAUSE_FACTOR = 3.0
logger = logging.getLogger("cabs.serve")


class Keeper:
    """A thread that keeps a router up to date with its log, its bundle and the upstreams file.

    Args:
        folder: folder of the bundle.
        make: function that returns a router on the folder as it is now. A reload passes `encoder` and `log`
            of the router before.
        also: a further file that `make` reads. A change of this file reloads the router, too.
        every: seconds between two looks at the log and the files.
        checkpoint: least seconds between two checkpoints, which only the holder of the lease writes, and only
            if something was learnt or the router was replaced. `stop` does not wait so
            long.
        tick: function that is called at every look with the router, and with True if this process holds the
            lease.

    Attributes:
        router: the router that decides now.
        failures: number of looks, reloads and passes over the whole log that failed. A reload that fails
            again for the same reason is not counted again.
        reload_problem: sentence that says why a changed bundle or file is not used. None if all are used.
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
        self.folder = Path(folder)
        self.make = make
        self.files = [self.folder / HEADER]
        if also is not None:
            self.files.append(Path(also))
        self.every = every
        self.checkpoint = checkpoint
        self.tick = tick
        self.name = f"{os.uname().nodename}:{os.getpid()}"
        self.failures = 0
        self.reload_problem: str | None = None
        self._seen = self._file_stamps()
        self._retry_at = 0.0
        self.router = make()
        self._stop = threading.Event()
        self._relearning: threading.Thread | None = None
        self._relearn_from = 0.0
        self._noted_shared_text = False
        self._thread = threading.Thread(target=self._run, name="cabs-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, also: Callable[[], None] = lambda: None) -> None:
        """Stop the thread, learn and write a checkpoint if this process gets the lease, and close the log.

        Args:
            also: function that ends work that `tick` began, called once the thread has ended, or after ten
                seconds if the thread has not ended.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        also()
        if self.router.log.take_lease(self.name, 0.0):
            self.router.follow(again=False)
            self.router.checkpoint()
        self.router.log.close()

    def _run(self) -> None:
        """Look at log and files every `every` seconds until `stop` is called.

        A look reloads the router, learns new rows, takes or renews the lease, calls `tick`, and writes a
        checkpoint if one is due. A look that fails is counted in `failures`, and the next one follows.
        """
        saved_at = time.monotonic()
        saved_version = self.router.learner.version
        while not self._stop.wait(self.every):
            try:
                if self._reload():
                    saved_version = -1  # the new router has learnt nothing that is saved
                self._follow()
                leads = self.router.log.take_lease(self.name, LEASE_SECONDS)
                self._note_shared_text()
                self.tick(self.router, leads)
                if leads and time.monotonic() - saved_at >= self.checkpoint:
                    if self.router.learner.version != saved_version:
                        self.router.checkpoint()
                        saved_version = self.router.learner.version
                    saved_at = time.monotonic()
                self.router.log.database.sync()
            except Exception as error:  # requests go on whatever failed, and the next look may succeed
                self.failures += 1
                logger.warning("keeping up with the log failed: %s", error)

    def _follow(self) -> None:
        """Learn the new rows of the log. If scores were retracted, start a thread that learns all rows again.

        New rows are then left to that thread. Only one such thread runs at a time, and the next one starts
        after a pause (`_relearn`). After another retraction new rows wait for the end of the pause.
        """
        router = self.router
        router.follow(again=False)
        is_relearning = self._relearning is not None and self._relearning.is_alive()
        if is_relearning or time.monotonic() < self._relearn_from or not router.outdated:
            return
        self._relearning = threading.Thread(
            target=self._relearn, args=(router,), name="cabs-relearn", daemon=True
        )
        self._relearning.start()

    def _relearn(self, router: Router) -> None:
        """Learn the whole log again, and set a pause before the next such pass.

        All retractions during the pause are learnt in one pass.
        """
        begin = time.monotonic()
        try:
            router.follow()
        except Exception as error:  # the next look may succeed
            self.failures += 1
            logger.warning("learning the log again failed: %s", error)
        end = time.monotonic()
        self._relearn_from = end + PAUSE_FACTOR * (end - begin)

    def _note_shared_text(self) -> None:
        """Note in the log, for `cabs doctor`, when most recent prompts begin or cease to share their text.

        A prompt counts if more than half of its text is the beginning and the end of one of the four prompts
        before (`SharedText`), as in a template around each question. The note is a JSON list with the
        warning, or an empty list when the prompts cease. The warning also goes to the server's own log.
        """
        sentence = self.router.shared_text.sentence()
        is_shared = sentence is not None
        if is_shared == self._noted_shared_text:
            return
        self.router.log.note(SHARED_TEXT, json.dumps([] if sentence is None else [sentence]))
        if is_shared:
            logger.warning("%s", sentence)
        self._noted_shared_text = is_shared

    def _file_stamps(self) -> list[tuple[int, int, int]] | None:
        """Return (inode, time of modification in ns, size) of each file, or None if a file is missing now."""
        try:
            stats = [path.stat() for path in self.files]
        except OSError:
            return None
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]

    def _reload(self) -> bool:
        """Replace the router if a file has changed. Return True if the router was replaced.

        A change that cannot be used leaves the old router in place and is noted in `reload_problem`. It is
        tried again every `RETRY_SECONDS`. Nothing happens while a file is missing.
        """
        stamps = self._file_stamps()
        must_retry = self.reload_problem is not None and time.monotonic() >= self._retry_at
        if stamps is None or (stamps == self._seen and not must_retry):
            return False
        self._seen = stamps
        try:
            # requests may still use the old router, so its log stays open and the new router uses it
            fresh = self.make(encoder=self.router.encoder, log=self.router.log)
        except Exception as error:  # a damaged bundle, a model without an endpoint, an unreachable log
            files = " or ".join(map(str, self.files))
            problem = f"a change of {files} is not used, the old stays: {error}"
            if problem != self.reload_problem:
                self.failures += 1
                logger.error("%s", problem)
            self.reload_problem = problem
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return False
        self.reload_problem = None
        if fresh.manifest.id == self.router.manifest.id:
            logger.info("bundle %s is read again", fresh.manifest.id)
        else:
            logger.info("bundle %s takes the place of %s", fresh.manifest.id, self.router.manifest.id)
        self.router = fresh
        return True
