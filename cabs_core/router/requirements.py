"""What a machine that only serves a bundle installs: the bundle's requirements.txt.

A list and not an extra, because an extra can only add to the dependencies of a distribution, and those of
this one make the whole project. Every package is named with the version that made the bundle, with all that
it depends on, so that `pip install --no-deps` needs to find nothing else.
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
#: what every router imports: decisions, the event log, the command line, the server
_ALWAYS = (
    "aiohttp",
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
_TRANSFORMER = ("onnxruntime", "tokenizers")


def serving_requirements(policy: str, encoder: str) -> str:
    """Text of requirements.txt for a policy and a pool's encoder, with the versions that are installed here.

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
    """Names of distributions, sorted: the roots and what they depend on here, without extras and this one.

    Raises:
        RouterError: one of them is not installed.
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
    """The distributions that classes `module:Class` come from, this one left out."""
    packages = {path.partition(".")[0].partition(":")[0] for path in paths} - {"cabs_core"}
    by_package = metadata.packages_distributions() if packages else {}  # it reads the files of all packages
    return [name for package in sorted(packages) for name in by_package.get(package, [])]


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise RouterError(
            f"package {name!r}, which serves this router, is not installed: pip install {name}"
        ) from None


def _version(name: str) -> str:
    return _distribution(name).version.partition("+")[0]  # `+cpu` names a build, which an index may not have


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
