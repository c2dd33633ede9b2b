"""Models of the upstreams file that say how they start (`scored` or `like`) join the router.

The worker that holds the lease has them join, by `joining.join` as command and HTTP do; the others take up
the new bundle. What was taken out, by `remove-model` or `rollback`, does not come back by the file.
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

#: seconds after which a model that could not join tries again: its scored prompts may be mended
AGAIN = 15.0
COPY = "this router is a copy of one on a store: change that one, and it is taken up"
logger = logging.getLogger("cabs.serve")


class Joins:
    """What the upstreams file says of models that the router does not choose yet.

    Args:
        file: the upstreams file. models: those that it has now. copy: whether the router is one of a store's.

    Attributes:
        problems: why models have not joined, in sentences.
    """

    def __init__(
        self, file: str | Path | None, models: Callable[[], Mapping[str, Upstream]], *, copy: bool = False
    ):
        self.file, self.models, self.copy = file, models, copy
        self.problems: list[str] = []
        self._noted: list[str] | None = None
        self._tried: tuple[str, dict[str, Upstream]] | None = None
        self._again = 0.0
        self._thread: threading.Thread | None = None

    def look(self, router: Router, leads: bool) -> None:
        """Have waiting models join, beside this thread. leads: whether this worker is the one to do it."""
        waiting = {n: m for n, m in self.models().items() if m.joins_by is not None and n not in router.arms}
        if not leads:
            self.problems = json.loads(router.log.noted(JOINS) or "[]") if waiting else []
            self._noted = self._tried = None
        elif self._thread is None or not self._thread.is_alive():
            tried = (router.manifest.id, waiting)
            if not waiting:
                self._note(router, [])
            elif tried != self._tried or time.monotonic() >= self._again:
                self._tried = tried
                self._thread = threading.Thread(
                    target=self._join, args=(router, waiting), name="cabs-joins", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Wait for a model that is joining."""
        if self._thread is not None:
            self._thread.join(10.0)

    def _join(self, router: Router, waiting: dict[str, Upstream]) -> None:
        problems = []
        for name, model in waiting.items():
            try:
                if name not in removed_models(router.folder):
                    self._take(router, name, model)
            except Exception as error:  # whatever it is, the old router serves on
                problems.append(f"{self.file}: models.{name}.{model.joins_by}: {error}")
        self._again = time.monotonic() + AGAIN
        self._note(router, problems)

    def _take(self, router: Router, name: str, model: Upstream) -> None:
        if self.copy:
            raise RouterError(COPY)
        scored = None if model.scored is None else read_scored(Path(str(self.file)).parent / model.scored)
        new = NewModel(name, scored=scored, like=model.like)
        made = join(router.folder, new, self.models(), log=router.log, encoder=router.encoder)
        logger.info("%s has joined by %s: bundle %s", name, self.file, made)

    def _note(self, router: Router, problems: list[str]) -> None:
        """Tell other workers and `doctor`."""
        if problems != self._noted:
            router.log.note(JOINS, json.dumps(problems))
            for problem in problems:
                logger.error("%s", problem)
        self.problems = self._noted = problems
