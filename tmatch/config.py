"""The base class of all settings."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Typed, frozen settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
