"""Where converted copies of published files are kept: by content, so that another file never meets them."""

from __future__ import annotations

from pathlib import Path

from cabs_core.paths import cabs_home

VERSION = 1


def converted_path(loader: str, sha256: str) -> Path:
    """`$CABS_HOME/converted/<loader>-v<version>-<content>.parquet`; raise VERSION when a conversion changes."""
    return cabs_home() / "converted" / f"{loader}-v{VERSION}-{sha256[:16]}.parquet"
