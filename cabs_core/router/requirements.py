"""The bundle's requirements.txt: the packages for a machine that only serves the bundle.

The packages are a list and no extra, because an extra can only add to the dependencies of a distribution, and
the dependencies of this distribution are those of the whole project. Every package is named with the version
that made the bundle, with all that it depends on, so that `pip install --no-deps` needs to find nothing else.
"""

import re
import sys
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement

from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.policies import policy_record
from cabs_core.base.errors import RouterError

NAME = "requirements.txt"
OWN = "cabs-routing"
#: Packages that every router imports: for decisions, the event log, the command line and the server.
_ALWAYS = (
    "aiohttp",
    "anyio",
    "click",
    "filelock",
    "google-re2",
    "httptools",
    "msgspec",
    "numba",
    "numpy",
    "packaging",
    "prometheus-client",
    "pydantic",
    "pyyaml",
    "safetensors",
    "scipy",
    "starlette",
    "threadpoolctl",
    "uvicorn",
    *(() if sys.platform == "win32" else ("uvloop",)),
)
#: Packages of an encoder that is a transformer.
_TRANSFORMER = ("onnxruntime", "tokenizers")


def serving_requirements(policy: str, encoder: str) -> str:
    """Return the text of requirements.txt for a policy and an encoder, with the versions installed here.

    Raises:
        RouterError: a package that serving needs is not installed here.
    """
    record = encoder_record(encoder)
    fitted = record is not None and bool(record.path)
    roots = [*_ALWAYS, *(() if fitted else _TRANSFORMER)]
    roots += record.packages if record is not None else ()
    roots += _distributions(
        [policy_record(policy).path, *([record.path] if record is not None and fitted else [])]
    )
    lines = [
        "# What serves this router, with the versions that made it and nothing else: no orchestrator, no "
        "torch.",
        f"#   pip install --no-deps -r {NAME}",
        f"# {OWN} itself may be a wheel that you built: add --find-links FOLDER.",
        "# A log on PostgreSQL also needs psycopg2-binary, a router on an object store s3fs (or another "
        "fsspec driver).",
    ]
    if policy_record(policy).family == "neural":
        lines.append(
            f"# {policy} trains networks while it serves. Also: pip install torch=={_version('torch')}"
        )
    return "\n".join([*lines, *(f"{name}=={_version(name)}" for name in [OWN, *closure(roots)]), ""])


def closure(roots: Iterable[str]) -> list[str]:
    """Return the names of distributions and of all that they depend on here, sorted, without this project.

    Optional dependencies (extras) are left out.

    Raises:
        RouterError: a distribution is not installed.
    """
    names: set[str] = set()
    waiting = [_canonical(name) for name in roots]
    while waiting:
        name = waiting.pop()
        if name in names or name == OWN:
            continue
        names.add(name)
        for line in _distribution(name).requires or []:
            dependency = Requirement(line)
            if dependency.marker is None or dependency.marker.evaluate({"extra": ""}):
                waiting.append(_canonical(dependency.name))
    return sorted(names)


def _distributions(paths: Iterable[str]) -> list[str]:
    """Return the distributions of the classes `module:Class`, without this project."""
    packages = {path.partition(".")[0].partition(":")[0] for path in paths} - {"cabs_core"}
    by_package = metadata.packages_distributions() if packages else {}  # it reads the files of all packages
    return [name for package in sorted(packages) for name in by_package.get(package, [])]


def _distribution(name: str) -> metadata.Distribution:
    """Return an installed distribution, or raise RouterError."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise RouterError(
            f"package {name!r}, which serves this router, is not installed: pip install {name}"
        ) from None


def _version(name: str) -> str:
    """Return the version of a distribution, without a build such as `+cpu`, which an index may not have."""
    return _distribution(name).version.partition("+")[0]


def _canonical(name: str) -> str:
    """Return the name of a distribution in lower case, with `-` for each run of `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name).lower()
