"""Making one artifact: its inputs are verified, its files are built and recorded, and both are published."""

import ctypes
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cabs_core.base.hashing import hash_folder
from cabs_core.pipeline.artifacts.planner import Chain
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Recipe, Record
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.artifacts.stages import Target
from cabs_core.pipeline.artifacts.store import ArtifactStore, Parts


@dataclass(frozen=True)
class Options:
    """Settings of a run that makes artifacts. None of them changes a result.

    Attributes:
        force: compute although the artifact is there and nothing changed.
        device: where networks run: auto, cpu or cuda.
        run_id: the run that makes the artifact, for the record.
        notify: called with words on how far the work is.
    """

    force: bool = False
    device: str = "auto"
    run_id: str = ""
    notify: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Made:
    """An artifact after a run, with its record and its local folder.

    Attributes:
        reused: True if the artifact was fresh, so that nothing was computed.
        reasons: why the artifact was computed; `forced` if only `Options.force` asked for it. Empty if it was
            reused.
    """

    record: Record
    folder: Path
    reused: bool
    reasons: tuple[str, ...] = ()


#: A stage's work: fills `folder` from `inputs` ({stage: folder}) and says what it found.
Builder = Callable[[Chain, Target, Path, dict[str, Path], Options], Summary]


def make_artifact(
    chain: Chain, target: Target, options: Options | None = None, *, build: Builder | None = None
) -> Made:
    """Make a stage or a replay of a pool, unless the artifact is fresh and `options.force` is not set.

    Args:
        build: function that makes the files. None means `build` of the module that the stage names.

    Raises:
        ProvenanceError: an input is missing, out of date or altered.
    """
    options = options or Options()
    status = chain.status(target)
    if status.state == "fresh" and status.record is not None and not options.force:
        return Made(status.record, chain.store.folder(target.parts), True)
    inputs = chain.require(target)
    recipe = chain.status(target).recipe
    assert recipe is not None  # of every target whose inputs are there

    def work(folder: Path) -> dict[str, Any]:
        # by its name: every stage imports heavy packages that the others do without
        stage: Builder = build or import_module(target.definition.module).build
        summary = stage(chain, target, folder, inputs, options)
        _give_back()
        return asdict(summary)

    record = produce(chain.store, target.parts, recipe, work, options.run_id)
    chain.forget(target)
    return Made(
        record, chain.store.written_folder(target.parts, record), False, status.reasons or ("forced",)
    )


def _give_back() -> None:
    """Return freed memory to the system, as allocators keep it and the next stage needs more on top."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # where the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)


def produce(
    store: ArtifactStore,
    parts: Parts,
    recipe: Recipe,
    work: Callable[[Path], dict[str, Any]],
    run_id: str = "",
) -> Record:
    """Let `work` fill a folder, write the record, publish both as one, and return the record.

    Args:
        parts: path of the artifact in the store.
        recipe: inputs, settings and code of the artifact, for the record.
        work: function that fills a folder and returns the summary, for the record.
    """
    started = time.perf_counter()
    with store.write(parts) as folder:
        summary = work(folder)
        seconds = time.perf_counter() - started
        record = recipe.record(
            hash_folder(folder, without=(RECORD_NAME,)), summary, seconds=seconds, run_id=run_id
        )
        (folder / RECORD_NAME).write_bytes(record.to_bytes())
    return record
