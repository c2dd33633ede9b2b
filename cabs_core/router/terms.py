"""What a request may say of its routing: which models may answer it, and what a right answer is worth.

    x-cabs-models: small, medium     only these are drawn, and asked where one fails; or a JSON list
    x-cabs-value: 0.02               USD that a right answer is worth, 1 / rho

The models that may answer are those that the log calls available, so propensities and estimates are those of
the restricted draw. A worth is bounded by the rhos that a pacer may reach: beyond them nothing was replayed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.usage import MOST_CALL_USD
from cabs_core.router.bundle import Manifest
from cabs_core.router.logged import LoggedBundle
from cabs_core.router.pacer import highest_rho

MODELS, VALUE = "x-cabs-models", "x-cabs-value"
#: headers of an answer: `Routed.why` as JSON; there and `WANTED` where the decision's score is
WHY, SCORE, WANTED = "x-cabs-why", "x-cabs-score", "wanted"


@dataclass(frozen=True)
class Terms:
    """Terms of a request.

    Attributes:
        models: names of the models that may answer; None: all. rho: score units per USD; None: the router's.
    """

    models: tuple[str, ...] | None = None
    rho: float | None = None

    @classmethod
    def read(cls, headers: Mapping[str, Any], router: LoggedBundle) -> Terms:
        """The terms in headers (names in lower case), checked for a router.

        Raises:
            RouterError: a model that the router does not choose between, none at all, a worth out of range,
                or one at all where the policy serves one rho only.
        """
        models, value = headers.get(MODELS), headers.get(VALUE)
        return cls(
            None if models is None else _models(models, router.manifest),
            None if value is None else router.rho_of(1.0 / _value(value, router.manifest)),
        )


def _as_utf8(header: str) -> str:
    """A header as its client wrote it: servers read the bytes as Latin-1, most clients write UTF-8."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header


def _models(header: Any, manifest: Manifest) -> tuple[str, ...]:
    """Names in the order of the router's models."""
    names = header
    if isinstance(header, str):
        header = _as_utf8(header)
        try:
            names = json.loads(header) if header.lstrip().startswith("[") else header.split(",")
        except (ValueError, RecursionError):
            names = None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise RouterError(f"{MODELS} {header!r:.100}: expected names, divided by commas or as a JSON list")
    listed = {name.strip() for name in names} - {""}
    models = ", ".join(manifest.names)
    if unknown := sorted(listed - set(manifest.names)):
        raise RouterError(f"{MODELS}: unknown model {unknown[0]!r:.100}; this router knows {models}")
    if not listed:
        raise RouterError(f"{MODELS} names no model; this router chooses between {models}")
    return tuple(name for name in manifest.names if name in listed)


def _value(text: Any, manifest: Manifest) -> float:
    """USD that a right answer is worth."""
    low, high = min(manifest.rhos), max(manifest.rhos)
    least, most = 1.0 / max(highest_rho(low, high), 1.0 / MOST_CALL_USD), 1.0 / max(low, 1.0 / MOST_CALL_USD)
    try:
        value = float("nan") if isinstance(text, bool) or "_" in str(text) else float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not least * (1.0 - 1e-6) <= value <= most * (1.0 + 1e-6):
        raise RouterError(
            f"{VALUE} {text!r:.60}: expected the worth of a right answer, USD from {least:.6g} to {most:.6g}"
        )
    return value
