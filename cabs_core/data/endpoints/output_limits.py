"""Limits of a request on the length and the number of answers, in the field names of all providers.

Money for a call is reserved by these limits, so no field that a provider may read is passed over. Limits also
stand in objects such as Ollama's `options` and Gemini's `generation_config`, and some providers write
thoughts beyond the limit of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cabs_core.data.endpoints.body_fields import FORMATS, INSTRUCTIONS, MESSAGES, TOOLS
from cabs_core.data.endpoints.usage import as_count
from cabs_core.data.pool_files.collect import OUTPUT_LIMITS

#: Fields that limit the tokens of an answer, in the names of OpenAI, Anthropic, llama.cpp, TGI, Ollama and
#: Bedrock. If a request has several, the first one with a sound number is sent.
OUTPUT_FIELDS = (
    *OUTPUT_LIMITS,
    "max_output_tokens",
    "n_predict",
    "max_new_tokens",
    "max_tokens_to_sample",
    "num_predict",
    "max_gen_len",
)
#: Fields that set the fewest tokens of an answer, which may be more than its limit.
_FEWEST_FIELDS = ("min_tokens", "min_new_tokens")
#: Fields that limit the tokens of thoughts, in the names of Anthropic, Alibaba, Gemini and NVIDIA.
_THOUGHT_FIELDS = ("budget_tokens", "thinking_budget", "max_thinking_tokens", "reasoning_budget")
#: Fields that set the number of answers to each prompt.
_ANSWER_FIELDS = ("n", "best_of", "num_return_sequences", "candidate_count", "num_generations")
#: Fields of a request that hold texts, schemas or notes, in which no provider looks for limits.
_OTHER_FIELDS = frozenset(
    (
        *(*MESSAGES, *INSTRUCTIONS, *TOOLS, *FORMATS),
        *("tool_choice", "metadata", "stream_options", "logit_bias", "user"),
    )
)
#: Levels of nested objects in which limits are looked for.
_DEPTH = 4
#: Characters of a field's name that some providers ignore.
_IGNORED = re.compile(r"[\s_-]+")


class OutputLimits(NamedTuple):
    """Limits of a request on what a model may write.

    Attributes:
        field: the field at the top of the body that limits the tokens of an answer. Of several such fields,
            this one alone is sent. None if the request has none with a sound number.
        tokens: the number in that field. None if there is no such field.
        nested: largest number of answer tokens in a limit within another field or in a field such as
            `min_tokens`; 0 if there is none.
        thoughts: largest limit of the tokens of thoughts; 0 if the request does not limit them.
        answers: number of answers to each prompt, at least 1; the largest one if several fields set it.
        unsound: path of a field that holds no sound number where one of the numbers above is expected. None
            if there is no such field. A negative limit of thoughts leaves them open and is not unsound, and
            neither is a field at the top beside the sound one in `field`.
    """

    field: str | None = None
    tokens: float | None = None
    nested: float = 0.0
    thoughts: float = 0.0
    answers: float = 1.0
    unsound: str | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> OutputLimits:
        """Return the limits in the body of a request, or in the fields that an operator sets."""
        names = [name for name in output_fields_of(body) if body[name] is not None]
        field = next((name for name in names if as_count(body[name]) is not None), None)
        unsound = names[0] if names and field is None else None
        nested = 0.0
        thoughts = 0.0
        answers = 1.0
        for name, place, value, depth in _named_values(body, "", 0):
            kind = _KINDS[name]
            if value is None or (depth == 0 and kind == "limit"):
                continue  # the limits at the top of the body were read above
            number = as_count(value)
            if number is None:
                is_open = kind == "thoughts" and isinstance(value, int | float) and value < 0
                unsound = unsound if is_open else place  # Gemini's -1 leaves the thoughts to the model
            elif kind == "answers":
                answers = max(answers, number)
            elif kind == "thoughts" or place.startswith("reasoning."):
                thoughts = max(thoughts, number)
            else:
                nested = max(nested, number)
        tokens = None if field is None else as_count(body[field])
        return cls(field, tokens, nested, thoughts, answers, unsound)

    def most(self, tokens: float) -> float:
        """Return the most tokens that one answer and its thoughts have if the answer's limit is `tokens`.

        A larger `nested` takes the place of `tokens`, and `thoughts` is added.
        """
        return max(tokens, self.nested) + self.thoughts


#: Limits of a request that gives none.
NO_LIMITS = OutputLimits()


def output_fields_of(body: Mapping[str, Any]) -> list[str]:
    """Return the fields of a body that limit the tokens of an answer, in the order of `OUTPUT_FIELDS`.

    Names count as equal if they differ in upper case, underscores, hyphens or spaces alone: some providers
    read `Max_Tokens` or `maxTokens` as `max_tokens`.
    """
    found = [name for name in body if _folded(name) in _OUTPUT_ORDER]
    return sorted(found, key=lambda name: (_OUTPUT_ORDER[_folded(name)], name not in OUTPUT_FIELDS))


def _named_values(fields: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, str, Any, int]]:
    """Yield (folded name, path, value, depth) of every field that `_KINDS` names, also in nested objects.

    A field that holds an object is searched and is not itself yielded. Fields of the body in `_OTHER_FIELDS`
    are skipped, and so are fields deeper than `_DEPTH` objects.

    Args:
        path: names of the objects around `fields`, each with a dot after it; '' for the body itself.
        depth: number of these objects.
    """
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
    """Return a field's name in lower case, without the characters that some providers ignore."""
    return _IGNORED.sub("", name).casefold()


#: Folded name of a field that limits the output -> its place in `OUTPUT_FIELDS`.
_OUTPUT_ORDER = {_folded(name): order for order, name in enumerate(OUTPUT_FIELDS)}
#: Folded name of a field -> the kind of number that it sets.
_KINDS = {
    **{_folded(name): "limit" for name in OUTPUT_FIELDS},
    **{_folded(name): "fewest" for name in _FEWEST_FIELDS},
    **{_folded(name): "thoughts" for name in _THOUGHT_FIELDS},
    **{_folded(name): "answers" for name in _ANSWER_FIELDS},
}
