"""Where outcomes come from: one module a source. Each returns `RawOutcomes` with every model it has."""

from __future__ import annotations

from cabs_core.outcomes.raw import RawOutcomes
from cabs_core.pools.config import Source


def read_remote(source: Source) -> RawOutcomes:
    """Read one of the paper's three benchmarks, downloading (or taking from the mirror) what is not cached."""
    from importlib import import_module

    module = import_module(f"cabs_core.outcomes.sources.{source.kind}")
    return module.read(source)
