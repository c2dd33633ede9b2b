"""Terms of a request: headers that say which models may answer it, and what a right answer is worth.

    x-cabs-models: small, medium     only these are drawn, and tried where one fails; or a JSON list
    x-cabs-value: 0.02               USD that a right answer is worth, 1 / rho

The log calls exactly these models available, so propensities and estimates are those of the restricted draw.
A value is bounded by the rhos that a pacer may reach, since nothing was replayed beyond them.
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

#: Headers of a request.
MODELS = "x-cabs-models"
VALUE = "x-cabs-value"
#: Header of an answer: `Routed.why` as JSON.
WHY = "x-cabs-why"
#: Header of an answer whose decision is marked, and its content.
SCORE = "x-cabs-score"
WANTED = "wanted"
#: Share by which a value may miss the bounds, since clients write few digits.
_SLACK = 1e-6


@dataclass(frozen=True)
class Terms:
    """Terms of a request.

    Attributes:
        models: names of the models that may answer, in the router's order. None if all may.
        rho: score units per USD. None takes the router's.
    """

    models: tuple[str, ...] | None = None
    rho: float | None = None

    @classmethod
    def read(cls, headers: Mapping[str, Any], router: LoggedBundle) -> Terms:
        """Read the terms from headers, and check them for a router.

        Args:
            headers: {name in lower case: content}.

        Raises:
            RouterError: the headers name a model that the router does not choose between, or no model; or the
                value is out of range, or the policy serves one rho only.
        """
        models = None
        if headers.get(MODELS) is not None:
            models = _read_models(headers[MODELS], router.manifest)
        rho = None
        if headers.get(VALUE) is not None:
            rho = router.rho_of(1.0 / _read_value(headers[VALUE], router.manifest))
        return cls(models, rho)


def _as_utf8(header: str) -> str:
    """Return a header as its client wrote it: servers read the bytes as Latin-1, most clients write UTF-8.

    A header whose bytes are no UTF-8 is returned unchanged.
    """
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header


def _read_models(header: Any, manifest: Manifest) -> tuple[str, ...]:
    """Return the models that a header names, in the order of the router's models.

    Raises:
        RouterError: the header names no model, or one that the router does not have.
    """
    names = header
    if isinstance(header, str):
        header = _as_utf8(header)
        try:
            if header.lstrip().startswith("["):
                names = json.loads(header)
            else:
                names = header.split(",")
        except (ValueError, RecursionError):
            names = None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise RouterError(f"{MODELS} {header!r:.100}: expected names, divided by commas or as a JSON list")
    listed = {name.strip() for name in names} - {""}
    models = ", ".join(manifest.names)
    unknown = sorted(listed - set(manifest.names))
    if unknown:
        raise RouterError(f"{MODELS}: unknown model {unknown[0]!r:.100}; this router knows {models}")
    if not listed:
        raise RouterError(f"{MODELS} names no model; this router chooses between {models}")
    return tuple(name for name in manifest.names if name in listed)


def _read_value(text: Any, manifest: Manifest) -> float:
    """Return the value of a right answer that a header gives, USD.

    Raises:
        RouterError: the value is no number, or its rho (1 / value) is beyond those that a pacer may reach.
    """
    low = min(manifest.rhos)
    high = max(manifest.rhos)
    least = 1.0 / max(highest_rho(low, high), 1.0 / MOST_CALL_USD)
    most = 1.0 / max(low, 1.0 / MOST_CALL_USD)
    value = float("nan")
    if not isinstance(text, bool) and "_" not in str(text):  # Python reads "1_000" as a number
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = float("nan")
    if not least * (1.0 - _SLACK) <= value <= most * (1.0 + _SLACK):
        raise RouterError(
            f"{VALUE} {text!r:.60}: expected the worth of a right answer, USD from {least:.6g} to {most:.6g}"
        )
    return value
