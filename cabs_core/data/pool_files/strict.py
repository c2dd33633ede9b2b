"""Base of what YAML files hold: pool files with their sections, upstreams."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A section that cannot be changed; an unknown field, an infinity or a NaN is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
