"""A generator as a training task: states and captions, with captions dropped for guidance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.data import InMemory
from tmatch.model import Model
from tmatch.noise import Noise
from tmatch.text import TextEncoder
from tmatch.train.trainer import Task

MOMENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where validation measures the loss."""


@dataclass(frozen=True)
class Captioned:
    """States and their captions, in pairs."""

    data: InMemory
    captions: Sequence[str]

    def __post_init__(self) -> None:
        if len(self.captions) != len(self.data):
            raise ValueError(f"There are {len(self.captions)} captions for {len(self.data)} states; they go in pairs.")


class GeneratorTask(Task):
    """Algorithm 1 on captioned states; a share `drop` of the captions is left empty, so that guidance can be used.

    Batch order and noise come from (seed, step, place in the batch), so a batch may be cut anywhere.
    """

    def __init__(
        self,
        model: Model,
        encoder: TextEncoder,
        training: Captioned,
        validation: Captioned | None = None,
        drop: float = 0.15,
    ) -> None:
        super().__init__()
        self.model = model
        self.encoder = encoder
        self.training_set = training
        self.validation_set = validation
        self.data = training.data
        self.drop = drop

    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        chosen = self.data.indices(step, size).tensor_split(parts)[part]
        places = torch.arange(size).tensor_split(parts)[part]
        noise = Noise.derive(self.data.seed, step, places, self.data.x.device)
        dropped = (noise.uniform() < self.drop).tolist()
        texts = self.training_set.captions
        captions = ["" if drop else texts[k] for k, drop in zip(chosen.tolist(), dropped, strict=True)]
        return self.model.loss(self.data.x[chosen], noise, self.encoder(captions)).mean()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The loss near fixed times, captions given, always with the same noise."""
        if self.validation_set is None:
            return {}
        x, seed = self.validation_set.data.x, self.validation_set.data.seed
        condition = self.encoder(self.validation_set.captions)
        losses = {}
        for moment in MOMENTS:
            noise = Noise.derive(seed, 0, len(x), x.device)
            losses[f"t={moment}"] = self.model.loss(x, noise, condition, self.model.times.near(moment)).mean().item()
        return {**losses, "mean": sum(losses.values()) / len(losses)}

    def networks(self) -> list[nn.Module]:
        kernel = self.model.kernel
        return [kernel.backbone, *([] if kernel.head is None else [kernel.head])]

    def shared(self) -> dict[int, Any]:
        return {id(part): part for part in (self.data, self.training_set, self.validation_set)}
