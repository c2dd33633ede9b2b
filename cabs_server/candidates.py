"""The models that may answer a request, one attempt after the other.

    for states in candidates:
        answer = await attempt_one_of(states)
        candidates.note(answer)

Each round gives the models that may be drawn next. The propensity of a decision is therefore the probability
among the models that could be asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cabs_core.data.endpoints.replies import Meaning
from cabs_server.call import Answer
from cabs_server.connections import UpstreamState
from cabs_server.refusals import Refusals, RequestKind

#: number of refusals that no rule explains after which a 400 is taken for the caller's own mistake
_UNCERTAIN = 2


class Candidates:
    """Rounds of models that may answer a request.

    Args:
        states: the models that can take the request.
        most: most models that are asked. None asks all.
        refusals: memory of the models that refuse requests of a kind. Such models are left out as long as
            there are others.
        kind: kind of the request.
    """

    def __init__(
        self, states: Sequence[UpstreamState], most: int | None, refusals: Refusals, kind: RequestKind
    ):
        self._states = states
        self._most = len(states) if most is None else most
        self._refusals = refusals
        self._kind = kind
        self._asked: set[str] = set()
        self._uncertain: list[str] = []

    def __iter__(self) -> Iterator[list[UpstreamState]]:
        """Yield the models that may be asked next.

        The rounds end once `most` models were asked, none is left, or `is_mistake` is true.
        """
        while len(self._asked) < self._most and not self.is_mistake:
            rest = self._rest()
            if not rest:
                return
            yield rest

    def note(self, answer: Answer) -> None:
        """Note that a model did not answer. The next rounds are without this model."""
        self._asked.add(answer.model)
        if answer.failure is Meaning.MODEL_REFUSES_FIELD and not answer.is_certain:
            self._uncertain.append(answer.model)

    @property
    def is_mistake(self) -> bool:
        """True if two models refused the request for reasons that no rule explains.

        The request is then taken for a mistake of the caller.
        """
        return len(self._uncertain) >= _UNCERTAIN

    def _rest(self) -> list[UpstreamState]:
        """Return the models that were not asked and may answer now.

        If others are left, models are left out whose account refused the request without an explanation, that
        refuse this kind of request, or whose breaker is open.
        """
        rest = [state for state in self._states if state.model not in self._asked]
        if self._uncertain:
            places = {state.upstream.account for state in self._states if state.model in self._uncertain}
            rest = [state for state in rest if state.upstream.account not in places] or rest
        rest = [state for state in rest if not self._refusals.refuses(state.model, self._kind)] or rest
        return [state for state in rest if state.breaker.allows()] or rest
