"""docs/upstreams.md names every field of the upstreams file with its default,
and its example is a valid file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from cabs_core.data.endpoints.upstreams import BreakerSettings, Upstream, Upstreams
from cabs_core.data.endpoints.usage import CallPrice

PAGE = (Path(__file__).parents[2] / "docs" / "upstreams.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("field of the file", Upstreams),
        ("field", Upstream),
        ("field of `price`", CallPrice),
        ("field of `breaker`", BreakerSettings),
    ],
)
def test_it_names_every_field(heading: str, model: type[BaseModel]) -> None:
    _, _, rest = PAGE.partition(f"| {heading} | default | |\n")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", rest.partition("\n\n")[0], re.MULTILINE))
    assert list(rows) == list(model.model_fields)
    for name, meaning in rows.items():
        field = model.model_fields[name]
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            assert meaning == "required", name
        elif isinstance(default, bool | int | float):
            assert meaning == (str(default).lower() if isinstance(default, bool) else f"{default:g}"), name
        elif isinstance(default, tuple):
            assert meaning == (", ".join(default) or "none"), name


def test_its_example_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    upstreams = Upstreams.model_validate(yaml.safe_load(text))
    assert upstreams.models["claude"].speaks == ("chat", "messages") and upstreams.models["local"].free
