"""A generator as a training task: states and captions, with captions dropped for guidance."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tmatch.data import InMemory
from tmatch.model import Model
from tmatch.noise import Noise
from tmatch.text import TextEncoder
from tmatch.train.trainer import Task


class GeneratorTask(Task):
    """Algorithm 1 on captioned states; a share `drop` of the captions is left empty, so that guidance can be used.

    Batch order and noise come from (seed, step, place in the batch), so a batch may be cut anywhere.
    """

    def __init__(
        self, model: Model, encoder: TextEncoder, data: InMemory, captions: Sequence[str], drop: float = 0.15
    ) -> None:
        super().__init__()
        if len(captions) != len(data):
            raise ValueError(f"There are {len(captions)} captions for {len(data)} states; they go in pairs.")
        self.model = model
        self.encoder = encoder
        self.data = data
        self.captions = captions
        self.drop = drop

    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        chosen = self.data.indices(step, size).tensor_split(parts)[part]
        places = torch.arange(size).tensor_split(parts)[part]
        noise = Noise.derive(self.data.seed, step, places, self.data.x.device)
        dropped = (noise.uniform() < self.drop).tolist()
        captions = ["" if drop else self.captions[k] for k, drop in zip(chosen.tolist(), dropped, strict=True)]
        return self.model.loss(self.data.x[chosen], noise, self.encoder(captions)).mean()
