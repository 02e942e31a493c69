"""From prompts to images."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.codec import Codec
from tmatch.condition import Condition
from tmatch.conditioning import Conditioner
from tmatch.conditioning.base import has_surrogates, shortened
from tmatch.generation.frames import frames
from tmatch.generation.generate import Evaluations, generate
from tmatch.guidance import ClassifierFreeGuidance, constant
from tmatch.model import Model
from tmatch.sampling import SamplingParams
from tmatch.tensors import Precision, positive_int
from tmatch.times import Steps


@dataclass(frozen=True)
class GeneratedImages:
    """Images (n, 3, height, width) in [0, 1], and what one image took of each network, and all of them in seconds."""

    images: Tensor
    evaluations: Evaluations
    seconds: float
    path: list[Tensor] = field(default_factory=list)
    """The way there, on request: images (n, 3, height, width) of moments of it."""


def require_prompts(*prompts: object) -> None:
    """Refuse what is no text that a tokenizer can read."""
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(f"A prompt is a text; got {prompt!r}.")
        if has_surrogates(prompt):
            raise ValueError(f"The prompt {shortened(prompt)!r} has half of a letter; is it written in UTF-8?")


class TextToImage(nn.Module):
    """A text encoder, the model it conditions, and the codec between its states of `shape` and images.

    `grids` are the rows and columns of tokens that the model was trained on, where that is known.
    """

    def __init__(
        self,
        model: Model,
        encoder: Conditioner,
        codec: Codec,
        shape: tuple[int, int, int],
        grids: Collection[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.encoder = encoder
        self.codec = codec
        self.shape = shape
        self.grids = grids

    def trained(self) -> nn.ModuleDict:
        """The parts whose weights a run writes."""
        parts: dict[str, nn.Module] = {"model": self.model}
        return nn.ModuleDict(parts if self.encoder.frozen else {**parts, "encoder": self.encoder})

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Any],
        seeds: Sequence[int],
        *,
        steps: Steps | None = None,
        guidance: float = 1.0,
        schedule: Callable[[float], float] = constant,
        negative: str = "",
        height: int | None = None,
        width: int | None = None,
        params: SamplingParams = SamplingParams(),
        batch_size: int = 64,
        progress: bool = False,
        keep_path: bool = False,
        precision: Precision = "float32",
    ) -> GeneratedImages:
        """An image for each prompt and its seed; `guidance` pushes away from the `negative` prompt.

        A prompt is a text, or what else the encoder reads. Images are as large as most that the model was trained on,
        unless a `height` or `width` in pixels is given. Guidance acts by a `schedule` over the time. `params` says
        how to draw; its own guidance is not used. `precision` is that of the model's matrix products, not of the
        encoder and the codec; an image depends on the batch it is drawn in where that is coarser than float32.
        """
        if len(prompts) == 0 or any(isinstance(prompt, str) and not prompt.strip() for prompt in prompts):
            raise ValueError("A prompt is empty; say what to draw, such as 'a red circle'.")
        require_prompts(*(prompt for prompt in prompts if not isinstance(prompt, Tensor)), negative)
        if len(seeds) != len(prompts):
            raise ValueError(f"There are {len(seeds)} seeds for {len(prompts)} prompts; give one for each.")
        scale = ClassifierFreeGuidance(self.encoder([negative or self.encoder.null]), guidance, schedule=schedule)
        size, shape = positive_int("The batch size", batch_size), self._shape(height, width)
        parts = (prompts[first : first + size] for first in range(0, len(prompts), size))
        condition = Condition.cat([self.encoder(part) for part in parts])
        params = replace(params, guidance=scale)
        result = generate(
            self.model, shape, seeds, condition,
            steps=steps, params=params, batch_size=batch_size, progress=progress,
            keep_path=keep_path, precision=precision,
        )  # fmt: skip
        images = torch.cat([self.codec.decode(part).cpu() for part in result.x.split(size)])
        way = frames(result.path, self.codec, size) if keep_path else []
        return GeneratedImages(images, result.evaluations, result.seconds, way)

    def prompt_warnings(self, prompts: Sequence[str], height: int | None = None, width: int | None = None) -> list[str]:
        """On prompts that are not read as they stand, and on a size that is none of those the model was trained on."""
        said, (rows, columns, _) = self.encoder.prompt_warnings(prompts), self._shape(height, width)
        if not self.grids or (rows, columns) in self.grids:
            return said
        down, across = self.codec.token
        known = ", ".join(f"{m * down} x {n * across}" for m, n in sorted(self.grids))
        return [*said, f"the model never saw images {rows * down} high and {columns * across} wide, but {known}."]

    def _shape(self, height: int | None, width: int | None) -> tuple[int, int, int]:
        """That of the states of images of a size; what is not given is the model's own."""
        (rows, columns, channels), (down, across) = self.shape, self.codec.token
        height, width = rows * down if height is None else height, columns * across if width is None else width
        if height < 1 or width < 1 or height % down or width % across:
            raise ValueError(
                f"This model cannot draw images {height} high and {width} wide: a token of it is {down} x {across} "
                "pixels; give a height and a width that are multiples of that."
            )
        return height // down, width // across, channels
