"""Models that the upstreams file adds to a running router, by its fields `scored` or `like`.

The worker that holds the lease of the log adds them, as `cabs router add-model` does. The other workers load
the new bundle. A model that was removed by `remove-model` or `rollback` is not added again by the file.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.events.log import JOINS
from cabs_core.router.joining import NewModel, join, removed_models
from cabs_core.router.router import Router
from cabs_core.router.scored_table import read_scored

#: seconds after which a model that could not join is tried again: its scored prompts may have been corrected
RETRY_SECONDS = 15.0
COPY = "this router is a copy of one on a store: change that one, and it is taken up"
logger = logging.getLogger("cabs.serve")


class Joins:
    """A background worker that adds models of the upstreams file to the router.

    Args:
        file: path of the upstreams file.
        models: function that returns {model: endpoint} of the file as it was last read.
        is_copy: True if the bundle is a copy of one on a store, so that models cannot join here.

    Attributes:
        problems: sentences that say why models have not joined.
    """

    def __init__(
        self,
        file: str | Path | None,
        models: Callable[[], Mapping[str, Upstream]],
        *,
        is_copy: bool = False,
    ):
        self.file = file
        self.models = models
        self.is_copy = is_copy
        self.problems: list[str] = []
        self._noted: list[str] | None = None
        self._tried: tuple[str, dict[str, Upstream]] | None = None
        self._retry_at = 0.0
        self._thread: threading.Thread | None = None

    def look(self, router: Router, leads: bool) -> None:
        """Start a thread that adds the models which wait to join, if this worker holds the lease.

        No thread is started while another one runs, or within `RETRY_SECONDS` of one that failed to add the
        same models to the same bundle.

        Args:
            leads: True if this worker holds the lease. Any other worker only reads the problems in the log.
        """
        waiting = {
            name: model
            for name, model in self.models().items()
            if model.joins_by is not None and name not in router.arms
        }
        if not leads:
            if waiting:
                self.problems = json.loads(router.log.noted(JOINS) or "[]")
            else:
                self.problems = []
            self._noted = None
            self._tried = None
            return
        if self._thread is not None and self._thread.is_alive():
            return
        if not waiting:
            self._note(router, [])
            return
        attempt = (router.manifest.id, waiting)
        if attempt == self._tried and time.monotonic() < self._retry_at:
            return
        self._tried = attempt
        self._thread = threading.Thread(
            target=self._join_all, args=(router, waiting), name="cabs-joins", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Wait, at most 10 seconds, for the thread that adds models."""
        if self._thread is not None:
            self._thread.join(10.0)

    def _join_all(self, router: Router, waiting: dict[str, Upstream]) -> None:
        """Add models to the router unless they were removed before, and note why a model cannot join."""
        problems = []
        for name, model in waiting.items():
            try:
                if name not in removed_models(router.folder):
                    self._join(router, name, model)
            except Exception as error:  # whatever failed, the old router goes on
                problems.append(f"{self.file}: models.{name}.{model.joins_by}: {error}")
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._note(router, problems)

    def _join(self, router: Router, name: str, model: Upstream) -> None:
        """Write a bundle that has one more model. Raises CabsError if the model cannot join."""
        if self.is_copy:
            raise RouterError(COPY)
        scored = None
        if model.scored is not None:
            scored = read_scored(Path(str(self.file)).parent / model.scored)
        new = NewModel(name, scored=scored, like=model.like)
        bundle = join(router.folder, new, self.models(), log=router.log, encoder=router.encoder)
        logger.info("%s has joined by %s: bundle %s", name, self.file, bundle)

    def _note(self, router: Router, problems: list[str]) -> None:
        """Write the problems to the log if they changed. Other workers and `cabs doctor` read them there."""
        if problems != self._noted:
            router.log.note(JOINS, json.dumps(problems))
            for problem in problems:
                logger.error("%s", problem)
        self._noted = problems
        self.problems = problems
