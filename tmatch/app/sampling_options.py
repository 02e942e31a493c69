"""Options that `generate` and `evaluate` share: the device, and a `SamplingConfig` whose every field is optional."""

from typing import Annotated, Any, cast

import tyro
from pydantic import Field, create_model

from tmatch.config import Config
from tmatch.generation import TextToImage, compile_for_sampling
from tmatch.generation.config import SamplingConfig, require_applicable
from tmatch.tensors import Device, Precision, resolve_device

DEFAULT_MODEL = "shapes-dtm-from-fm"


class ComputeOptions(Config):
    """Where and how the networks run; `SAMPLING_OPTIONS` adds how to sample."""

    device: Device = "auto"
    """device; 'auto' uses the accelerator if there is one"""
    precision: Precision = "float32"
    """precision of matrix products; tf32 and bfloat16 are faster on a GPU, and results depend on the batch size"""
    compile: bool = False
    """compile the networks first, which takes a minute or more: for many images"""

    def apply(self, pipeline: TextToImage, own: SamplingConfig) -> SamplingConfig:
        """Move a pipeline to its device; return the model's own settings with the given ones, which must apply."""
        given = self.model_dump(exclude_none=True, exclude={*ComputeOptions.model_fields})
        config = own.updated(**given)
        require_applicable(pipeline.model.kernel, config, given, "--")
        pipeline.to(resolve_device(self.device))
        if self.compile:
            compile_for_sampling(pipeline.model)
        return config


_FIELDS: dict[str, Any] = {
    name: (
        Annotated[cast(Any, field.annotation) | None, tyro.conf.arg(help_behavior_hint="(default: the model's)")],
        Field(default=None, description=(field.description or "").partition("; None")[0]),
    )
    for name, field in SamplingConfig.model_fields.items()
}
SAMPLING_OPTIONS = create_model("SamplingOptions", __base__=ComputeOptions, **_FIELDS)()
"""The options with nothing given: None stands for the model's own setting."""
SamplingOptions = Annotated[ComputeOptions, tyro.conf.arg(name="")]
