"""Names that look like one model: `openai/gpt-x`, `gpt-x-2026-03-05`, `GPT-X`."""

import re
from collections import defaultdict
from collections.abc import Mapping

_REGION = re.compile(r"^(?:us|eu|apac|global)\.")
#: a provider before the name, as Bedrock (`anthropic.x`) and promptfoo (`openai:chat:x`) write it
_VENDOR = re.compile(
    r"^(?:anthropic|openai|meta|mistral|amazon|cohere|ai21|deepseek|qwen|google)"
    r"(?:\.|:(?:chat:|completion:|messages:|responses:)?)"
)
_VERSION = re.compile(r"(?:-v\d+)?(?::[\w-]+)?$")
_DATE = re.compile(
    r"[-@](?:20\d\d-\d\d-\d\d|20\d{6}|2\d(?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])|latest)$"
)


def base_of(name: str) -> str:
    """A model's name without provider, date, case and blanks: only to ask whether two look alike."""
    base = re.sub(r"[\s_]+", "-", name.strip().casefold()).rpartition("/")[2]
    base = _VENDOR.sub("", _REGION.sub("", base))
    base = _VERSION.sub("", base) or base
    return _DATE.sub("", base) or base


def alike(counts: Mapping[str, int]) -> list[dict[str, int]]:
    """Groups of names that look like one model, each {name: calls}, the most calls first."""
    groups: dict[str, dict[str, int]] = defaultdict(dict)
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        groups[base_of(name)][name] = count
    return [group for group in groups.values() if len(group) > 1]
