"""The models that may be asked next, after each attempt that did not answer."""

from __future__ import annotations

import pytest

from cabs_core.data.endpoints.replies import Meaning
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_server.breaker import Breaker
from cabs_server.call import Answer
from cabs_server.candidates import Candidates
from cabs_server.connections import UpstreamState
from cabs_server.refusals import Refusals, RequestKind

KIND = RequestKind.of("key", {"messages": []})
#: models a and b share an account; c and d have accounts of their own
PLACES = {"a": 8001, "b": 8001, "c": 8002, "d": 8003}


class Rounds:
    """Candidates of the four models, with their refusals and breakers."""

    def __init__(self, most: int | None = None) -> None:
        self.refusals = Refusals(clock=lambda: 0.0)
        self.breakers = {model: Breaker(failures=1) for model in PLACES}
        states = [
            UpstreamState(model, Upstream(url=f"http://127.0.0.1:{port}/v1", free=True), self.breakers[model])
            for model, port in PLACES.items()
        ]
        self.candidates = Candidates(states, most, self.refusals, KIND)

    def next_models(self) -> str:
        """Return the models of the next round as one word, or '' if there is no further round."""
        states = next(iter(self.candidates), [])
        return "".join(state.model for state in states)

    def fail(self, model: str, failure: Meaning = Meaning.RETRY, *, is_certain: bool = True) -> None:
        """Let a model fail to answer."""
        self.candidates.note(Answer(500, {}, model=model, failure=failure, is_certain=is_certain))


def test_each_model_is_asked_once():
    rounds = Rounds()
    for model, rest in [("b", "acd"), ("a", "cd"), ("d", "c"), ("c", "")]:
        rounds.fail(model)
        assert rounds.next_models() == rest


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_models_are_asked_than_the_limit_of_attempts(most):
    rounds = Rounds(most)
    for model in "abcd"[:most]:
        assert rounds.next_models() != ""
        rounds.fail(model)
    assert rounds.next_models() == ""


def test_a_refusal_without_an_explanation_leaves_out_its_account_while_there_are_others():
    rounds = Rounds()
    rounds.fail("a", Meaning.MODEL_REFUSES_FIELD, is_certain=False)
    assert (rounds.next_models(), rounds.candidates.is_mistake) == ("cd", False)
    rounds.fail("c")
    rounds.fail("d")
    assert rounds.next_models() == "b"


def test_the_second_refusal_without_an_explanation_is_the_callers_mistake():
    rounds = Rounds()
    for model in "ac":
        rounds.fail(model, Meaning.MODEL_REFUSES_FIELD, is_certain=False)
    assert (rounds.next_models(), rounds.candidates.is_mistake) == ("", True)


def test_explained_refusals_and_other_failures_are_nobodys_mistake():
    rounds = Rounds()
    rounds.fail("a", Meaning.MODEL_REFUSES_FIELD)
    rounds.fail("c", Meaning.WAIT, is_certain=False)
    rounds.fail("d", Meaning.TOO_LONG, is_certain=False)
    assert (rounds.next_models(), rounds.candidates.is_mistake) == ("b", False)


def test_models_that_refuse_the_kind_of_request_are_left_out_while_there_are_others():
    rounds = Rounds()
    rounds.refusals.note_refusal("b", KIND)
    rounds.refusals.note_refusal("c", KIND)
    assert rounds.next_models() == "ad"
    rounds.fail("a")
    rounds.fail("d")
    assert rounds.next_models() == "bc"


def test_models_whose_breaker_is_open_are_left_out_while_there_are_others():
    rounds = Rounds()
    rounds.breakers["a"].failed("HTTP 500")
    rounds.breakers["d"].failed("HTTP 500")
    assert rounds.next_models() == "bc"
    rounds.fail("b")
    rounds.fail("c")
    assert rounds.next_models() == "ad"
