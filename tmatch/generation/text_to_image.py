"""From prompts, or whatever else a conditioner reads, to images."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.codec import Codec
from tmatch.condition import Condition
from tmatch.conditioning import Conditioner
from tmatch.conditioning.base import require_text
from tmatch.config import MAX_SIZE
from tmatch.generation.config import SamplingConfig
from tmatch.generation.frames import frames
from tmatch.generation.generate import Evaluations, generate, require_seeds
from tmatch.model import Model
from tmatch.sampler import build_sampler
from tmatch.tensors import Precision, positive_int


@dataclass(frozen=True)
class GeneratedImages:
    """Images (n, 3, height, width) in [0, 1], or latents, with network evaluations per image and seconds in total."""

    images: Tensor
    evaluations: Evaluations
    seconds: float
    path: list[Tensor] = field(default_factory=list)
    """On request, intermediate images (n, 3, height, width)."""


class TextToImage(nn.Module):
    """A conditioner, the model it conditions, and the codec between states of `shape` and images.

    `grids` are the rows and columns of tokens that the model was trained on, where they are known.
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
        """The modules whose weights a run saves."""
        parts: dict[str, nn.Module] = {"model": self.model}
        return nn.ModuleDict(parts if self.encoder.frozen else {**parts, "encoder": self.encoder})

    @torch.no_grad()
    def generate(
        self,
        inputs: Sequence[Any],
        seeds: Sequence[int],
        sampling: SamplingConfig = SamplingConfig(),
        *,
        negative: Any = None,  # noqa: ANN401
        height: int | None = None,
        width: int | None = None,
        batch_size: int = 64,
        progress: bool = False,
        keep_path: bool = False,
        precision: Precision = "float32",
    ) -> GeneratedImages:
        """One image for each input and its seed; guidance pushes away from the `negative` input.

        An input is a prompt, or whatever else the conditioner reads; None is no condition. Images have the most common
        size of the training images, unless a `height` or `width` in pixels is given. `precision` is that of the model's
        matrix products, and their rounding is all that the batch changes in an image.
        """
        self._require_inputs(inputs, seeds, negative)
        size, shape = positive_int("The batch size", batch_size), self._shape(height, width)
        scale = prod(shape[:2]) / prod(self.shape[:2])
        result = generate(
            self.model, shape, seeds, self._condition(inputs, size), steps=sampling.times(self.model.times, scale),
            params=sampling.build(self._null(negative)), sampler=build_sampler(sampling.sampler), batch_size=size,
            progress=progress, keep_path=keep_path, precision=precision,
        )  # fmt: skip
        images = torch.cat([self.codec.decode(part).cpu() for part in result.x.split(size)])
        if not (result.x.isfinite().all() and images.isfinite().all()):  # clamped to [0, 1] they would look like images
            raise ValueError("Sampling diverged to NaN or infinity: use less guidance, or another model.")
        path = frames(result.path, self.codec, size) if keep_path else []
        return GeneratedImages(images, result.evaluations, result.seconds, path)

    def _require_inputs(self, inputs: Sequence[Any], seeds: Sequence[int], negative: Any) -> None:  # noqa: ANN401
        require_seeds(seeds)
        conditional = self.encoder.width is not None
        if len(inputs) == 0 or (conditional and any(isinstance(x, str) and not x.strip() for x in inputs)):
            raise ValueError("A prompt is empty; describe an image, such as 'a red circle'.")
        require_text([x for x in (*inputs, negative) if isinstance(x, str)])
        if len(seeds) != len(inputs):
            raise ValueError(f"There are {len(seeds)} seeds for {len(inputs)} images; give one seed per image.")

    def _condition(self, inputs: Sequence[Any], size: int) -> Condition | None:
        inputs = [self.encoder.null if x is None else x for x in inputs]
        parts = [self.encoder(inputs[first : first + size]) for first in range(0, len(inputs), size)]
        given = [part for part in parts if part is not None]
        return Condition.cat(given) if given else None

    def _null(self, negative: Any) -> Condition | None:  # noqa: ANN401
        """What guidance pushes away from; None if the model is unconditional."""
        none_given = negative is None or (isinstance(negative, str) and not negative)
        return self.encoder([self.encoder.null if none_given else negative])

    def prompt_warnings(self, inputs: Sequence[Any], height: int | None = None, width: int | None = None) -> list[str]:
        """Warnings about prompts that are not fully read, and about an image size that was not trained on."""
        (rows, columns, _), prompts = self._shape(height, width), [x for x in inputs if isinstance(x, str)]
        warnings = self.encoder.prompt_warnings(prompts)
        if self.grids and (rows, columns) not in self.grids:
            down, across = self.codec.token
            known = ", ".join(f"{m * down} x {n * across}" for m, n in sorted(self.grids))
            size = f"{rows * down} x {columns * across}"
            warnings = [*warnings, f"the model was trained on images of {known} pixels, not {size}."]
        return warnings

    def _shape(self, height: int | None, width: int | None) -> tuple[int, int, int]:
        """The shape of the state of an image of that size; by default the model's own."""
        (rows, columns, channels), (down, across) = self.shape, self.codec.token
        height = positive_int("The height", rows * down if height is None else height, MAX_SIZE)
        width = positive_int("The width", columns * across if width is None else width, MAX_SIZE)
        if height % down or width % across:
            raise ValueError(
                f"This model cannot generate images of {height} x {width} pixels: use a height that is a multiple of "
                f"{down} and a width that is a multiple of {across}."
            )
        return height // down, width // across, channels
