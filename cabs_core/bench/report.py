"""What every benchmark shares: one thread, the machine's description, a table on the screen, JSON on disk."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import threadpoolctl

from cabs_core.atomic import write_text


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Hold BLAS, OpenMP and torch (if it is loaded) to one thread, so that ratios compare like with like."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    with threadpoolctl.threadpool_limits(1):
        if torch:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def machine(*packages: str) -> dict[str, Any]:
    """CPU, cores, load, Python and the versions of the named packages (those that are installed)."""
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions,
    }


def duration(seconds: float | None) -> str:
    """A duration for people: 3.1 us, 42 ms, 1.9 s; a dash for None."""
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print an aligned table."""
    cells = [[str(c) for c in columns]] + [["-" if c is None else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for n, row in enumerate(cells):
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
            )
        )
        if n == 0:
            print("  ".join("-" * w for w in widths))


def finish(result: dict[str, Any], json_path: Path | None) -> dict[str, Any]:
    """Write the result as JSON where asked, and return it."""
    if json_path is not None:
        write_text(Path(json_path), json.dumps(result, indent=2) + "\n")
        print(f"\nwritten to {json_path}")
    return result
