"""Base class of the pydantic models of YAML files: pool files with their sections, and upstreams files."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A section that cannot be changed; an unknown field, an infinity or a NaN is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
