"""Making a stage or a replay: the artifact, filled by the module of this package that its stage names."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from cabs_core.artifacts import Chain, Made, Options, Target, materialize


def make_artifact(chain: Chain, target: Target, options: Options | None = None) -> Made:
    """Make a stage or a replay of a pool unless it is there and fresh.

    Raises:
        ProvenanceError: an input is missing, out of date or altered.
    """
    return materialize(chain, target, options, build=_build)


def _build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> dict[str, Any]:
    # by its name: every stage imports heavy packages that the others do without
    stage = import_module(target.definition.module)
    summary: dict[str, Any] = stage.build(chain, target, folder, inputs, options)
    _give_back()
    return summary


def _give_back() -> None:
    """Return to the system what the stage has freed: allocators keep it, and the next stage's arrays would come on top."""
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # where the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)
