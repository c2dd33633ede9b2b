"""Description of a policy's options: default, range, choices and presets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.base.catalog.policies import policy_record, split_name

_BOUNDS = (
    ("exclusiveMinimum", "> {}"),
    ("minimum", ">= {}"),
    ("exclusiveMaximum", "< {}"),
    ("maximum", "<= {}"),
)


@dataclass(frozen=True)
class PolicyOption:
    """An option of a policy.

    Attributes:
        name: the keyword of the option in `build_policy(..., name=value)`.
        type: type of its values, such as `number` or `integer or none`.
        default: its value in the policy's default preset.
        range: its limits, such as `>= 0, <= 1`, or its choices, such as `a | b`; empty where any value of
            the type is taken.
        presets: {preset: value} of the presets whose value is not the default.
        description: meaning of the option; empty where only the docstring of the policy's class gives it.
    """

    name: str
    type: str
    default: Any
    range: str
    presets: Mapping[str, Any]
    description: str


def policy_options(name: str) -> list[PolicyOption]:
    """List the options of a policy, in the order in which its class declares them.

    Args:
        name: name of a policy of the catalog or of a plug-in. A known preset in the name changes nothing.

    Raises:
        PolicyError: there is no such policy, or the policy has no such preset.
    """
    base, _ = split_name(name)
    record = policy_record(base)
    cls = policy_class(base)
    schema = cls.settings_for(base).model_json_schema()
    values = {preset: cls.parse(f"{base}@{preset}", {}).model_dump(mode="json") for preset in record.presets}
    first = values[record.presets[0]]
    options = []
    for key, entry in schema.get("properties", {}).items():
        kind, limits = _type_and_range(entry, schema.get("$defs", {}))
        others = {preset: v[key] for preset, v in values.items() if v[key] != first[key]}
        options.append(PolicyOption(key, kind, first[key], limits, others, entry.get("description", "")))
    return options


def _type_and_range(entry: Mapping[str, Any], named: Mapping[str, Any]) -> tuple[str, str]:
    """Return type and range of a field in a JSON schema, such as (`number or none`, `>= 0`)."""
    parts = entry.get("anyOf") or [entry]
    kinds = []
    limits = []
    for part in parts:
        if "$ref" in part:
            part = named.get(part["$ref"].rpartition("/")[2], {})
        kinds.append(
            {"null": "none", "object": "mapping", "array": "list"}.get(
                kind := part.get("type", "value"), kind
            )
        )
        if "enum" in part or "const" in part:
            limits.append(" | ".join(str(choice) for choice in part.get("enum", [part.get("const")])))
        limits += [text.format(f"{part[key]:g}") for key, text in _BOUNDS if key in part]
    return " or ".join(dict.fromkeys(kinds)), ", ".join(dict.fromkeys(limits))


def signature_text(option: PolicyOption) -> str:
    """Describe an option on one line: name, type, default, range, other presets and description.

    An example is `alpha: number = 0.4 (>= 0); literal: 1.0. Description.`.
    """
    text = f"{option.name}: {option.type} = {option.default!r}"
    text += f" ({option.range})" if option.range else ""
    text += "".join(f"; {preset}: {value!r}" for preset, value in option.presets.items())
    return f"{text}. {option.description}".rstrip(" .") + "."
