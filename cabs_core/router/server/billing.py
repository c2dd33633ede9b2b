"""What a call cost: by the tokens that the upstream reported, else by an estimate that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cabs_core.endpoints.request import Request
from cabs_core.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.endpoints.usage import Tokens, tokens_of
from cabs_core.router.server.upstreams import Upstream


@dataclass(frozen=True)
class Bill:
    """cost in USD, None: not known. tokens: None: none were reported or estimated. estimated: nobody reported them."""

    cost: float | None = None
    tokens: Tokens | None = None
    estimated: bool = False

    @property
    def tokens_in(self) -> float | None:
        """Tokens in."""
        return None if self.tokens is None else self.tokens.input

    @property
    def tokens_out(self) -> float | None:
        """Tokens out."""
        return None if self.tokens is None else self.tokens.output


def bill_of(upstream: Upstream, request: Request, usage: Any, written: float, *, billed: bool) -> Bill:
    """The bill of a call.

    Args:
        usage: as reported. written: bytes of text that came back.
        billed: a provider may charge though it reported nothing. The estimate is then that of the request and of what
            was written, which is at most what the request allows.
    """
    counted, estimated = tokens_of(usage), False
    if counted is None:
        if not billed:
            return Bill()
        most, output = request.most_output, written / BYTES_A_TOKEN
        counted, estimated = Tokens(request.tokens, output if most is None else min(output, most)), True
    if upstream.free:
        return Bill(0.0, counted, estimated)
    return Bill(None if upstream.price is None else counted.cost(upstream.price), counted, estimated)
