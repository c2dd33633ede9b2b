"""A memory of requests that one provider refuses by a rule of its own and another one answers.

A provider's own rule, such as a schema that it does not read, shows only when another provider answers the
same request. The next request of the same kind is then not sent to the first provider. The kind of a request
is its caller, the names of its fields, and a hash of its tools.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cabs_core.data.endpoints.body_fields import TOOLS

#: seconds that a refusal is remembered
REMEMBERED = 3_600.0
#: most refusals that are remembered, and most answers
_MOST = 10_000


class RequestKind(NamedTuple):
    """Kind of a request, as far as a provider's rule may depend on it.

    Attributes:
        caller: name of the API key that sent the request.
        fields: hash of the names of the request's fields. A hash, since a body may have thousands of fields.
        tools: hash of the request's tools; empty if the request has no tools.
    """

    caller: str
    fields: bytes
    tools: str

    @classmethod
    def of(cls, caller: str, body: Mapping[str, Any]) -> RequestKind:
        """Return the kind of a request with this body."""
        tools = [body[name] for name in TOOLS if body.get(name)]
        digest = ""
        if tools:
            digest = hashlib.sha256(json.dumps(tools, sort_keys=True, default=str).encode()).hexdigest()[:16]
        fields = json.dumps(sorted(body)).encode()
        return cls(caller, hashlib.sha256(fields).digest(), digest)


class Refusals:
    """A memory of the refusals and answers of models, by the kind of the request.

    Args:
        clock: function that returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._refused: OrderedDict[tuple[str, RequestKind], float] = OrderedDict()
        self._answered: OrderedDict[tuple[str, RequestKind], float] = OrderedDict()

    def refuses(self, model: str, kind: RequestKind) -> bool:
        """Return True if a refusal of this kind of request by the model was noted within the last hour."""
        return self._is_fresh(self._refused, (model, kind))

    def note_answer(self, model: str, kind: RequestKind) -> None:
        """Note that the model answered a request of this kind, so `note_refusal` does nothing for an hour.

        A refusal that was noted before stays.
        """
        _put(self._answered, (model, kind), self._clock())

    def note_refusal(self, model: str, kind: RequestKind) -> None:
        """Note that the model refused a request of this kind, which another model answered.

        Nothing is remembered if the model answered a request of this kind within the last hour. The refusal
        was then due to a value, not to a field, and the model may answer the next request.
        """
        if not self._is_fresh(self._answered, (model, kind)):
            _put(self._refused, (model, kind), self._clock())

    def remembered(self) -> dict[str, int]:
        """Return {model: number of kinds of requests for which `refuses` is True now}."""
        counts: dict[str, int] = {}
        for model, kind in self._refused:
            if self.refuses(model, kind):
                counts[model] = counts.get(model, 0) + 1
        return counts

    def _is_fresh(self, noted: Mapping[tuple[str, RequestKind], float], key: tuple[str, RequestKind]) -> bool:
        """Return True if `noted` has a time within the last hour for a model and a kind of request."""
        when = noted.get(key)
        return when is not None and self._clock() - when < REMEMBERED


def _put(
    noted: OrderedDict[tuple[str, RequestKind], float], key: tuple[str, RequestKind], now: float
) -> None:
    """Note the time `now` for a model and a kind of request, and forget the oldest entries above `_MOST`."""
    noted[key] = now
    noted.move_to_end(key)
    while len(noted) > _MOST:
        noted.popitem(last=False)
