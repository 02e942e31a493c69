"""Presets of a model: sampling settings that `tmatch tune` chose, in presets.json beside model.json."""

from typing import Literal

from pydantic import Field

from tmatch.config import Config
from tmatch.generation.config import SamplingConfig

PRESETS = "presets.json"
PresetName = Literal["fast", "balanced", "best"]


class Preset(Config):
    """Sampling settings, their score, and what an image costs."""

    sampling: SamplingConfig
    score: float
    backbone_evaluations: int = Field(ge=0)
    head_evaluations: int = Field(ge=0)
    ms_per_image: float = Field(ge=0)


class Presets(Config):
    """presets.json: all three presets, and the metric and the number of prompts of their scores."""

    format: Literal[1] = 1
    metric: str
    split: Literal["validation"] = "validation"
    prompts: int = Field(gt=0)
    presets: dict[PresetName, Preset] = Field(min_length=3)
