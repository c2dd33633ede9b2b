"""Parquet copies of published files, named by the SHA-256 of the file that they were made from."""

from pathlib import Path

from cabs_core.base.paths import cabs_home

VERSION = 1


def converted_path(loader: str, sha256: str) -> Path:
    """Return `$CABS_HOME/converted/<loader>-v<VERSION>-<content>.parquet`. Another conversion takes another
    VERSION.
    """
    return cabs_home() / "converted" / f"{loader}-v{VERSION}-{sha256[:16]}.parquet"
