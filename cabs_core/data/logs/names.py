"""Model names that look like one model, such as `openai/gpt-x`, `gpt-x-2026-03-05` and `GPT-X`."""

import re
from collections import defaultdict
from collections.abc import Mapping

#: Region before the name, as in Bedrock.
_REGION = re.compile(r"^(?:us|eu|apac|global)\.")
#: Provider before the name, as in Bedrock (`anthropic.x`) and promptfoo (`openai:chat:x`).
_VENDOR = re.compile(
    r"^(?:anthropic|openai|meta|mistral|amazon|cohere|ai21|deepseek|qwen|google)"
    r"(?:\.|:(?:chat:|completion:|messages:|responses:)?)"
)
#: Version after the name, such as `-v1:0`.
_VERSION = re.compile(r"(?:-v\d+)?(?::[\w-]+)?$")
#: Date after the name, or `latest`.
_DATE = re.compile(
    r"[-@](?:20\d\d-\d\d-\d\d|20\d{6}|2\d(?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])|latest)$"
)


def base_of(name: str) -> str:
    """Return a model's name in lower case without provider, region, version and date.

    The result only serves to recognise names that look like one model, and not to call a model.
    """
    base = re.sub(r"[\s_]+", "-", name.strip().casefold()).rpartition("/")[2]
    base = _VENDOR.sub("", _REGION.sub("", base))
    base = _VERSION.sub("", base) or base
    return _DATE.sub("", base) or base


def alike(counts: Mapping[str, int]) -> list[dict[str, int]]:
    """Return groups of at least two names that look like one model: {name: calls}, most calls first."""
    groups: dict[str, dict[str, int]] = defaultdict(dict)
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        groups[base_of(name)][name] = count
    return [group for group in groups.values() if len(group) > 1]
