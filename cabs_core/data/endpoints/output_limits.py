"""How much a request lets a model write, by whatever names its fields have.

A budget is reserved by it, so no field that a provider may read is passed over: limits also stand in objects
such as Ollama's `options` and Gemini's `generation_config`, and some providers write thoughts beyond the
limit of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cabs_core.data.endpoints.usage import count
from cabs_core.data.pool_files.collect import OUTPUT_LIMITS

#: fields that bound the tokens of an answer, by OpenAI, Anthropic, llama.cpp, TGI, Ollama, Bedrock. If a
#: request has several, the first sound one is sent
OUTPUT_FIELDS = (
    *OUTPUT_LIMITS,
    "max_output_tokens",
    "n_predict",
    "max_new_tokens",
    "max_tokens_to_sample",
    "num_predict",
    "max_gen_len",
)
#: fields by which a model may write more than the limit of the answer says: the fewest tokens
_FEWEST_FIELDS = ("min_tokens", "min_new_tokens")
#: fields that bound the tokens of thoughts, by Anthropic, Alibaba and Gemini, NVIDIA
_THOUGHT_FIELDS = ("budget_tokens", "thinking_budget", "max_thinking_tokens", "reasoning_budget")
#: fields that say how many answers are written to each prompt
_ANSWER_FIELDS = ("n", "best_of", "num_return_sequences", "candidate_count", "num_generations")
#: fields of a request that hold texts, schemas or notes, in which no provider looks for limits
_OTHER_FIELDS = frozenset(
    (
        "messages input prompt contents system instructions tools functions tool_choice metadata text "
        "response_format output_format output_config stream_options logit_bias user"
    ).split()
)
#: how deep limits are looked for in objects within objects
_DEPTH = 4
_IGNORED = re.compile(r"[\s_-]+")


class OutputLimits(NamedTuple):
    """How much a request lets a model write.

    Attributes:
        field: the field beside the messages that bounds the tokens of an answer, and the only one that is
            sent. None if the request has no sound one.
        tokens: most tokens of an answer by that field. None if there is no such field.
        nested: most tokens that a limit within another field allows; 0 if there is none.
        thoughts: tokens of thoughts that the request allows; 0 if it does not say.
        answers: number of answers to each prompt, at least 1.
        unsound: a field that holds no sound number where one of the numbers above is expected, or None.
    """

    field: str | None = None
    tokens: float | None = None
    nested: float = 0.0
    thoughts: float = 0.0
    answers: float = 1.0
    unsound: str | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> OutputLimits:
        """Read the body of a request, or the fields that an operator sets in every request."""
        names = [name for name in output_fields_of(body) if body[name] is not None]
        field = next((name for name in names if count(body[name]) is not None), None)
        unsound = names[0] if names and field is None else None
        nested = 0.0
        thoughts = 0.0
        answers = 1.0
        for name, place, value, depth in _named_values(body, "", 0):
            kind = _KINDS[name]
            if value is None or (depth == 0 and kind == "limit"):  # of the limits at the top, one is sent
                continue
            number = count(value)
            if number is None:
                is_open = kind == "thoughts" and isinstance(value, int | float) and value < 0
                unsound = unsound if is_open else place  # Gemini's -1 leaves the thoughts to the model
            elif kind == "answers":
                answers = max(answers, number)
            elif kind == "thoughts" or place.startswith("reasoning."):
                thoughts = max(thoughts, number)
            else:
                nested = max(nested, number)
        tokens = None if field is None else count(body[field])
        return cls(field, tokens, nested, thoughts, answers, unsound)

    def most(self, tokens: float) -> float:
        """Return the most tokens that an answer has if its own limit is `tokens`."""
        return max(tokens, self.nested) + self.thoughts


#: of a request that says nothing of how much may be written
NO_LIMITS = OutputLimits()


def output_fields_of(body: Mapping[str, Any]) -> list[str]:
    """Return the fields of a body that bound the tokens of an answer, in the order of `OUTPUT_FIELDS`.

    Names count as equal if they differ in upper case, underscores, hyphens or spaces alone: some providers
    read `Max_Tokens` or `maxTokens` as `max_tokens`.
    """
    found = [name for name in body if _folded(name) in _OUTPUT_ORDER]
    return sorted(found, key=lambda name: (_OUTPUT_ORDER[_folded(name)], name not in OUTPUT_FIELDS))


def _named_values(fields: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, str, Any, int]]:
    """Yield (folded name, path, value, depth) of every field, in objects too, that is one of `_KINDS`."""
    for name, value in fields.items():
        if depth == 0 and name in _OTHER_FIELDS:
            continue
        if isinstance(value, dict):
            if depth < _DEPTH:
                yield from _named_values(value, f"{path}{name}.", depth + 1)
            continue
        folded = _folded(name)
        if folded in _KINDS:
            yield folded, f"{path}{name}", value, depth


def _folded(name: str) -> str:
    return _IGNORED.sub("", name).casefold()


_OUTPUT_ORDER = {_folded(name): order for order, name in enumerate(OUTPUT_FIELDS)}
#: {folded name of a field: what it bounds}
_KINDS = {
    **{_folded(name): "limit" for name in OUTPUT_FIELDS},
    **{_folded(name): "fewest" for name in _FEWEST_FIELDS},
    **{_folded(name): "thoughts" for name in _THOUGHT_FIELDS},
    **{_folded(name): "answers" for name in _ANSWER_FIELDS},
}
