"""A trained model as one object: `Pipeline.from_pretrained(name)(prompt).images`."""

import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from pydantic import ValidationError
from torch import Tensor

from tmatch.config import did_you_mean
from tmatch.data.images import to_image
from tmatch.generation import Evaluations
from tmatch.generation.config import SamplingConfig, require_applicable, unguided
from tmatch.generation.inputs import PYTHON, Inputs
from tmatch.hub import HubOptions, download, require_path, upload
from tmatch.rng import as_seed, next_seed
from tmatch.runs import MODELS, LoadedModel, load_model
from tmatch.runs.export import export
from tmatch.runs.load import HUB
from tmatch.tensors import Precision, positive_int, require_precision, resolve_device

Output = Literal["pil", "pt", "np"]
DTYPES: dict[torch.dtype, Precision] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""Precision of the model's matrix products, by dtype."""
_ARGUMENTS = {"steps": "num_inference_steps", "guidance": "guidance_scale"}
"""What diffusers calls fields of a `SamplingConfig`."""


@dataclass(frozen=True)
class PipelineOutput:
    """Images in the order of the prompts, and network evaluations per image."""

    images: Any
    """A list of PIL images, or as `output_type` says."""
    tensors: Tensor
    """The same images as a tensor (n, 3, height, width) in [0, 1]; of a model of latents, the latents."""
    evaluations: Evaluations


class Pipeline:
    """Prompts or classes to images, called like a diffusers pipeline.

    An image is determined by its input, its seed and the settings, up to rounding.

    `precision` is that of the model's matrix products, which round differently in batches of another size: in float32
    on a CPU by at most a level of 256 in a few pixels, and not at all in batches of 8 or more. bfloat16 and tf32 are
    faster on a GPU and round more. Weights, states, encoders and the codec keep their precision.
    """

    def __init__(self, model: LoadedModel, precision: Precision = "float32") -> None:
        require_precision(precision)
        self.model = model
        self.networks = model.pipeline
        self.config = model.config.run
        self.precision = precision

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Load a shipped model by name, the folder of a run or of an export, or `owner/name` from the hub.

        No code of the model is run, and weights are safetensors. `dtype` is torch.float32 or torch.bfloat16.
        """
        name, precision, hub = str(name), _precision(dtype), HubOptions(token, local_files_only)
        require_path(name)
        on_hub = name not in MODELS and not Path(name).exists() and name.count("/") == 1
        if on_hub or name.startswith(HUB):
            name = str(download(name.removeprefix(HUB), revision, hub))
        return cls(load_model(name, hub), precision)

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write configuration, weights and a model card to a new folder."""
        export(self.model, folder, dtype)

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload to the hub as `owner/name`; returns the address."""
        with tempfile.TemporaryDirectory() as draft:
            folder = Path(draft) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            return upload(folder, name, private, token)

    def to(self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move to a device ('cuda', 'cuda:1', 'mps', 'cpu', or 'auto' for the accelerator if there is one).

        Also sets the `dtype`, which may be the only argument: torch.bfloat16 or torch.float32.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        self.precision = self.precision if dtype is None else _precision(dtype)
        if device is not None:
            self.networks.to(resolve_device(device))
        return self

    def __call__(
        self,
        prompt: Any = None,  # noqa: ANN401
        *,
        class_labels: Any = None,  # noqa: ANN401
        unconditional: bool = False,
        negative_prompt: Any = "",  # noqa: ANN401
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        preset: str | None = None,
        num_images_per_prompt: int = 1,
        seed: int | Sequence[int] | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        batch_size: int = 64,
        output_type: Output = "pil",
        **sampling: Any,  # noqa: ANN401
    ) -> PipelineOutput:
        """Generate images for one or several prompts or classes, or without either.

        A model that was trained on class labels takes `class_labels`, indices or names of classes, and a class as its
        `negative_prompt`. `unconditional` leaves out the condition, as does a model that was trained without one.

        The settings are those of a `preset` that `tmatch tune` chose ('fast', 'balanced' or 'best'), by default of
        'balanced', or those of the run for a model without presets; single ones can be given on top.
        `seed` is that of the first image, and the following images have the following seeds; or it is a list with one
        seed per image. A `generator` is advanced and gives the first seed. `sampling` takes every other field of
        `SamplingConfig`: head_steps, solver, sampler, guidance_schedule, ... `output_type` is 'pil', or an array
        in [0, 1]: 'pt' (n, 3, height, width), 'np' (n, height, width, 3).
        """
        inputs = Inputs(_listed(prompt), _listed(class_labels), unconditional, negative_prompt)
        kind, given = inputs.resolve(self.networks.encoder, PYTHON)
        self._require_output(output_type)
        each = [one for one in given for _ in range(positive_int("num_images_per_prompt", num_images_per_prompt))]
        options = {"steps": num_inference_steps, "guidance": guidance_scale, **sampling}
        options = {name: value for name, value in options.items() if value is not None}
        config = self._sampling(preset, options, kind == "unconditional")
        seeds = _seeds(seed, generator, len(each))
        size: dict[str, Any] = {"height": height, "width": width, "batch_size": batch_size}
        result = self.networks.generate(each, seeds, config, negative=negative_prompt, precision=self.precision, **size)
        for warning in self.networks.prompt_warnings([*each, negative_prompt], height, width):
            warnings.warn(warning, stacklevel=2)
        images: Any = result.images
        if output_type != "pt":
            images = list(map(to_image, images)) if output_type == "pil" else images.movedim(1, -1).numpy()
        return PipelineOutput(images, result.images, result.evaluations)

    def _require_output(self, output_type: Output) -> None:
        if output_type not in get_args(Output):
            raise ValueError(f"output_type is one of {', '.join(get_args(Output))}; got {output_type!r}.")
        if self.networks.codec.latent and output_type == "pil":
            raise ValueError("This model generates latents: pass output_type='pt', and decode them yourself.")

    def _sampling(self, preset: str | None, options: dict[str, Any], unconditional: bool) -> SamplingConfig:
        """The sampling of the model with other options; an error names the argument of `__call__`."""
        own = self.model.sampling(preset)
        try:
            config = own.updated(**options)
        except ValidationError as error:
            wrong = error.errors()[0]
            name = _ARGUMENTS.get(key := str(wrong["loc"][0]), key)
            hint = did_you_mean(key, SamplingConfig.model_fields) if wrong["type"] == "extra_forbidden" else ""
            reason = wrong.get("ctx", {}).get("error") or f"{wrong['msg']}{hint}, got {wrong['input']!r}."
            raise ValueError(f"{name}: {reason}") from error
        require_applicable(self.networks.model.kernel, config, options)
        return unguided(config, [_ARGUMENTS.get(key, key) for key in options]) if unconditional else config


def _listed(given: Any) -> list[Any]:  # noqa: ANN401
    """One or several prompts or class labels as a list; a tensor or an array is one, too."""
    if hasattr(given, "tolist"):
        given = given.tolist()
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _precision(dtype: torch.dtype) -> Precision:
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise ValueError(f"dtype is {' or '.join(map(str, DTYPES))}; got {dtype!r}.")
    return DTYPES[dtype]


def _seeds(
    seed: int | Sequence[int] | None, generator: torch.Generator | Sequence[torch.Generator] | None, count: int
) -> Sequence[int]:
    """The seed of each image."""
    if seed is not None and generator is not None:
        raise ValueError("Give a seed or a generator, not both.")
    if generator is not None:
        seed = [next_seed(one) for one in generator] if isinstance(generator, Sequence) else next_seed(generator)
    if seed is not None and hasattr(seed, "tolist"):  # an array, a tensor, or a number of NumPy
        seed = seed.tolist()
    if not isinstance(seed, Sequence):
        first = as_seed(0 if seed is None else seed)
        return range(first, as_seed(first + count - 1) + 1)
    if len(seed) != count:
        raise ValueError(f"There are {len(seed)} seeds for {count} images; give one number, or one seed per image.")
    return seed
