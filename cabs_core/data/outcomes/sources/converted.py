"""Parquet copies of published files, named by the SHA-256 of the file that they were made from."""

from pathlib import Path

from cabs_core.base.paths import cabs_home

VERSION = 1


def converted_path(loader: str, sha256: str) -> Path:
    """Return the path of a copy: `$CABS_HOME/converted/LOADER-vVERSION-SHA256.parquet`.

    The first 16 characters of the hash are used. A change of the conversion needs a new `VERSION`, so that
    older copies are not used.
    """
    return cabs_home() / "converted" / f"{loader}-v{VERSION}-{sha256[:16]}.parquet"
