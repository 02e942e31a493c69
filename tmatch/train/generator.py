"""A generator as a training task: states and captions, with captions dropped for guidance."""

from typing import Any

import torch
from torch import Tensor, nn

from tmatch.conditioning import Conditioner
from tmatch.data.batches import BatchSource, Captioned
from tmatch.model import Model
from tmatch.rng import RandomStreams
from tmatch.train.trainer import Task

MOMENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Near which times validation measures the loss."""

AT_ONCE = 32
"""Samples that validation measures together, so that it takes no more memory than training."""


class GeneratorTask(Task):
    """Algorithm 1 on captioned states; a share `drop` of the captions is left empty, so that guidance can be used.

    Batch order and noise come from (seed, step, place in the batch), so a batch may be cut anywhere.
    """

    def __init__(
        self,
        model: Model,
        encoder: Conditioner,
        training: BatchSource,
        validation: Captioned | None = None,
        drop: float = 0.15,
    ) -> None:
        super().__init__()
        self.model = model
        self.encoder = encoder
        self.training_set = training
        self.validation_set = validation
        self.drop = drop

    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        x, captions = self.training_set.batch(step, size, part, parts)
        places = torch.arange(size).tensor_split(parts)[part]
        rng = RandomStreams.derive(self.training_set.seed, step, places)
        dropped = (rng.uniform() < self.drop).tolist()  # on the CPU, so that the host does not wait for a GPU
        rng = rng.to(x.device)
        given = [self.encoder.empty if drop else text for text, drop in zip(captions, dropped, strict=True)]
        return self.model.loss(x, rng, self.encoder(given)).mean()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The loss near fixed times, captions given, always with the same noise."""
        if self.validation_set is None:
            return {}
        x, seed, captions = self.validation_set.data.x, self.validation_set.data.seed, self.validation_set.captions
        moments = {self.model.times.nearest(t): 0.0 for t in MOMENTS}  # of which a coarse grid has fewer
        for places in torch.arange(len(x)).split(AT_ONCE):
            condition = self.encoder([captions[k] for k in places.tolist()])
            for fixed_time in moments:
                rng = RandomStreams.derive(seed, 0, places, x.device)
                moments[fixed_time] += self.model.loss(x[places], rng, condition, fixed_time).sum().item()
        losses = {f"t={fixed_time.t:g}": total / len(x) for fixed_time, total in moments.items()}
        return {**losses, "mean": sum(losses.values()) / len(losses)}

    def compile_modules(self) -> list[nn.Module]:
        kernel = self.model.kernel
        return [kernel.backbone, *([] if kernel.head is None else [kernel.head])]

    def fsdp_modules(self) -> list[nn.Module]:
        return self.model.kernel.fsdp_modules()

    def deepcopy_memo(self) -> dict[int, Any]:
        return {id(part): part for part in (self.training_set, self.validation_set)}
