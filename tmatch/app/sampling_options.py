"""Options that `generate` and `evaluate` share: the device, and a `SamplingConfig` whose every field is optional."""

from typing import Annotated, Any, cast

import tyro
from pydantic import Field, create_model

from tmatch.config import Config
from tmatch.generation import TextToImage, compile_for_sampling
from tmatch.generation.config import SamplingConfig, require_applicable, unguided
from tmatch.runs import LoadedModel
from tmatch.tensors import Device, Precision, resolve_device

DEFAULT_MODEL = "shapes-dtm-from-fm"


class ComputeOptions(Config):
    """Where and how the networks run."""

    device: Device = "auto"
    """device; 'auto' uses the accelerator if there is one"""
    precision: Precision = "float32"
    """precision of matrix products; tf32 and bfloat16 are faster on a GPU, and results depend on the batch size"""
    compile: bool = False
    """compile the networks first, which takes a minute or more: for many images"""

    def prepare(self, pipeline: TextToImage) -> None:
        """Move a pipeline to its device, and compile it on request."""
        pipeline.to(resolve_device(self.device))
        if self.compile:
            compile_for_sampling(pipeline.model)


COMPUTE_OPTIONS = ComputeOptions()


class PresetOptions(ComputeOptions):
    """A preset; `SAMPLING_OPTIONS` adds single settings."""

    preset: str | None = None
    """settings that `tmatch tune` chose: fast, balanced or best; None uses balanced if the model has presets"""

    def apply(self, model: LoadedModel, unconditional: bool = False) -> SamplingConfig:
        """Prepare a model; return the settings of its preset with the given ones, which must apply.

        An unconditional generation, which is that of every model without a condition, has no guidance.
        """
        given = self.model_dump(exclude_none=True, include={*SamplingConfig.model_fields})
        config = model.sampling(self.preset).updated(**given)
        require_applicable(model.pipeline.model.kernel, config, given, "--")
        self.prepare(model.pipeline)
        return unguided(config, given, "--") if unconditional or model.pipeline.encoder.width is None else config


_FIELDS: dict[str, Any] = {
    name: (
        Annotated[cast(Any, field.annotation) | None, tyro.conf.arg(help_behavior_hint="(default: the model's)")],
        Field(default=None, description=(field.description or "").partition("; None")[0]),
    )
    for name, field in SamplingConfig.model_fields.items()
}
SAMPLING_OPTIONS = create_model("SamplingOptions", __base__=PresetOptions, **_FIELDS)()
"""The options with nothing given: None stands for the model's own setting."""
SamplingOptions = Annotated[PresetOptions, tyro.conf.arg(name="")]
