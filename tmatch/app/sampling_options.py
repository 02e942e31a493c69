"""Options that `generate` and `evaluate` share: a `SamplingConfig` whose every field is optional, and the device."""

from dataclasses import dataclass
from typing import Annotated, Any, cast

import tyro
from pydantic import Field, create_model

from tmatch.config import Config
from tmatch.generation import TextToImage, compile_for_sampling
from tmatch.generation.config import SamplingConfig, require_applicable
from tmatch.tensors import Device, Precision, resolve_device

DEFAULT_MODEL = "shapes-dtm-from-fm"
_FIELDS: dict[str, Any] = {
    name: (cast(Any, field.annotation) | None, Field(default=None, description=field.description))
    for name, field in SamplingConfig.model_fields.items()
}
SAMPLING_OPTIONS = create_model("SamplingOptions", __base__=Config, **_FIELDS)()
"""The options with nothing given: None stands for the model's own setting."""
SamplingOptions = Annotated[Config, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class ComputeOptions:
    """Where and how the networks run."""

    device: Device = "auto"
    """device; 'auto' uses the accelerator if there is one"""
    precision: Precision = "float32"
    """precision of matrix products; tf32 and bfloat16 are faster on a GPU, and results depend on the batch size"""
    compile: bool = False
    """compile the networks first, which takes a minute or more: for many images"""

    def prepare(self, pipeline: TextToImage) -> TextToImage:
        """The pipeline on its device, compiled if requested."""
        pipeline.to(resolve_device(self.device))
        if self.compile:
            compile_for_sampling(pipeline.model)
        return pipeline


FlatComputeOptions = Annotated[ComputeOptions, tyro.conf.arg(name="")]


def sampling_config(options: Config, pipeline: TextToImage, own: SamplingConfig) -> SamplingConfig:
    """The given options over the model's own settings; an option that has no effect on the model is an error."""
    given = options.model_dump(exclude_none=True)
    config = own.updated(**given)
    require_applicable(pipeline.model.kernel, given)
    return config
