"""Versions of the libraries that results may depend on."""

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "cabs-routing",
    "numpy",
    "scipy",
    "torch",
    "transformers",
    "scikit-learn",
    "numba",
    "pandas",
    "pyarrow",
    "duckdb",
)


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Return `{name: version}` of Python and of the installed libraries that results may depend on."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
