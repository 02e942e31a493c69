"""A trained model as one object: `Pipeline.from_pretrained(name)(prompt).images`."""

import operator
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, SupportsIndex, get_args

import torch
from pydantic import ValidationError
from torch import Tensor

from tmatch.data.images import to_image
from tmatch.generation import Evaluations
from tmatch.hub import HubOptions, download, require_path, upload
from tmatch.rng import next_seed
from tmatch.runs.export import export
from tmatch.runs.load import HUB, MODELS, LoadedModel, open_model
from tmatch.tensors import Precision, positive_int, require_precision, resolve_device

Output = Literal["pil", "pt", "np"]
"""What images come as."""
DTYPES: dict[torch.dtype, Precision] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""What images may be drawn in, by diffusers' names."""


@dataclass(frozen=True)
class PipelineOutput:
    """Images, prompt by prompt, and what one of them took of each network."""

    images: Any
    """A list of PIL's, or what `output_type` asked for."""
    tensors: Tensor
    """The same, (n, 3, height, width) in [0, 1]."""
    evaluations: Evaluations


class Pipeline:
    """Prompts to images, called as diffusers' pipelines are; an image depends on its prompt and its seed alone.

    That holds in float32. `precision` is that of the model's matrix products: bfloat16 and tf32 are faster on a GPU,
    and round differently in batches of another size. Weights, states, encoders and the codec stay as they are.
    """

    def __init__(self, opened: LoadedModel, precision: Precision = "float32") -> None:
        require_precision(precision)
        self.opened = opened
        self.networks = opened.pipeline
        self.recipe = opened.about.recipe
        self.precision = precision

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
        dtype: torch.dtype | None = None,
        torch_dtype: torch.dtype | None = None,
    ) -> Self:
        """A model that comes with the package, the folder of a run or of an export, or `owner/name` of the hub.

        No code of it is run; weights are safetensors. Its encoders are asked for as it is itself. Images are drawn in
        `dtype`, torch.float32 or torch.bfloat16; `torch_dtype` is its older name.
        """
        if dtype is not None and torch_dtype is not None:
            raise ValueError("dtype and torch_dtype say the same; give dtype.")
        precision = _precision(torch_dtype if dtype is None else dtype)
        name, hub = str(name), HubOptions(token, local_files_only)
        require_path("a model", name)
        of_hub = name not in MODELS and not Path(name).exists() and name.count("/") == 1
        if of_hub or name.startswith(HUB):
            name = str(download(name.removeprefix(HUB), revision, hub))
        return cls(open_model(name, hub), precision)

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write configuration, weights and a card to a new folder."""
        export(self.opened, Path(folder), dtype)

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Put it on the hub as `owner/name`; where it is then."""
        with tempfile.TemporaryDirectory() as draft:
            folder = Path(draft) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            return upload(folder, name, private, token)

    def to(self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Compute there: 'cuda', 'cuda:1', 'mps', 'cpu', or 'auto' for the accelerator if there is one.

        And in a `dtype`, which may stand alone: torch.bfloat16 or torch.float32.
        """
        if isinstance(device, torch.dtype):
            if dtype is not None:
                raise ValueError(f"The device comes first and the dtype second; got {device} and {dtype!r}.")
            device, dtype = None, device
        precision = self.precision if dtype is None else _precision(dtype)
        if device is not None:
            self.networks.to(resolve_device(device))
        self.precision = precision
        return self

    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        negative_prompt: str = "",
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int | None = None,
        head_steps: int | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        seed: int | Sequence[int] | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        batch_size: int = 64,
        output_type: Output = "pil",
    ) -> PipelineOutput:
        """Images of one prompt or of several; what is None is as the model's recipe has it.

        The first image has the `seed`, or 0, the next ones the next; or each its own of a list. A `generator` gives
        one, and goes on. Images are of PIL, or arrays in [0, 1]: 'pt' (n, 3, height, width), 'np' (n, height, width,
        3).
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(prompts, Iterable):
            raise ValueError(f"A prompt is a text, or several are a list of them; got {prompt!r}.")
        if output_type not in get_args(Output):
            raise ValueError(f"output_type is one of {', '.join(get_args(Output))}; got {output_type!r}.")
        each = [text for text in prompts for _ in range(positive_int("num_images_per_prompt", num_images_per_prompt))]
        given = {"steps": num_inference_steps, "head_steps": head_steps, "guidance": guidance_scale}
        changes = {name: value for name, value in given.items() if value is not None}
        try:
            how = self.recipe.sampling.model_validate({**self.recipe.sampling.model_dump(), **changes})
        except ValidationError as error:
            wrong = error.errors()[0]
            name = {"steps": "num_inference_steps", "guidance": "guidance_scale"}.get(key := str(wrong["loc"][0]), key)
            raise ValueError(f"{name}: {wrong['msg']}, got {wrong['input']!r}.") from error
        drawn = self.networks.generate(
            each,
            _seeds(seed, generator, len(each)),
            **how.arguments(),
            negative=negative_prompt,
            height=height,
            width=width,
            batch_size=batch_size,
            precision=self.precision,
        )
        for remark in self.networks.prompt_warnings([*each, negative_prompt], height, width):
            warnings.warn(remark, stacklevel=2)
        return PipelineOutput(_images(drawn.images, output_type), drawn.images, drawn.evaluations)


def _precision(dtype: torch.dtype | None) -> Precision:
    """That of matrix products which a dtype stands for."""
    if dtype is None:
        return "float32"
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise ValueError(f"Images are drawn in {' or '.join(map(str, DTYPES))}; got {dtype!r}.")
    return DTYPES[dtype]


def _seeds(
    seed: int | Sequence[int] | None, generator: torch.Generator | Sequence[torch.Generator] | None, count: int
) -> Sequence[int]:
    """The seed of each image."""
    if seed is not None and generator is not None:
        raise ValueError("A seed and a generator say the same; give one of them.")
    if generator is not None:
        seed = [_drawn(one) for one in generator] if isinstance(generator, Sequence) else _drawn(generator)
    if not isinstance(seed, Sequence):
        first = _whole(0 if seed is None else seed)
        return range(first, first + count)
    if len(seed) != count:
        raise ValueError(f"There are {len(seed)} seeds for {count} images; give one number, or one for each.")
    return [_whole(one) for one in seed]


def _drawn(generator: torch.Generator) -> int:
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"A generator is a torch.Generator, or one for each image; got {generator!r}.")
    return next_seed(generator)


def _whole(seed: SupportsIndex) -> int:
    try:
        return operator.index(seed)
    except TypeError:
        raise ValueError(f"A seed is a whole number; got {seed!r}.") from None


def _images(images: Tensor, kind: Output) -> Any:  # noqa: ANN401
    if kind == "pil":
        return [to_image(image) for image in images]
    return images if kind == "pt" else images.movedim(1, -1).numpy()
