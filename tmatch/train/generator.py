"""A generator as a training task: captioned states, with caption dropout for classifier-free guidance."""

from typing import Any

import torch
from torch import Tensor, nn

from tmatch.conditioning import Conditioner
from tmatch.data.batches import BatchSource, Captioned
from tmatch.model import Model
from tmatch.rng import RandomStreams
from tmatch.train.trainer import Task

VALIDATION_TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
VALIDATION_BATCH_SIZE = 32


class GeneratorTask(Task):
    """Algorithm 1 on captioned states; a fraction `caption_dropout` of the captions is replaced by the null caption.

    Data order and noise depend on (seed, step, index in the batch), so a batch may be split anywhere.
    """

    def __init__(
        self,
        model: Model,
        encoder: Conditioner,
        training: BatchSource,
        validation: Captioned | None = None,
        caption_dropout: float = 0.15,
    ) -> None:
        super().__init__()
        self.model = model
        self.encoder = encoder
        self.training_set = training
        self.validation_set = validation
        self.caption_dropout = caption_dropout

    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        x, captions = self.training_set.batch(step, size, part, parts)
        indices = torch.arange(size).tensor_split(parts)[part]
        rng = RandomStreams.derive(self.training_set.seed, step, indices)
        dropped = (rng.uniform() < self.caption_dropout).tolist()  # on the CPU: the host does not wait for a GPU
        rng = rng.to(x.device)
        inputs = [self.encoder.null if drop else text for text, drop in zip(captions, dropped, strict=True)]
        return self.model.loss(x, rng, self.encoder(inputs)).mean()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the loss near fixed times, with all captions and the same noise at each call."""
        if self.validation_set is None:
            return {}
        x, seed, captions = self.validation_set.data.x, self.validation_set.data.seed, self.validation_set.captions
        totals = {self.model.times.nearest(t): 0.0 for t in VALIDATION_TIMES}  # fewer on a coarse grid
        for indices in torch.arange(len(x)).split(VALIDATION_BATCH_SIZE):
            condition = self.encoder([captions[k] for k in indices.tolist()])
            for time in totals:
                rng = RandomStreams.derive(seed, 0, indices, x.device)
                totals[time] += self.model.loss(x[indices], rng, condition, time).sum().item()
        losses = {f"t={time.t:g}": total / len(x) for time, total in totals.items()}
        return {**losses, "mean": sum(losses.values()) / len(losses)}

    def compile_modules(self) -> list[nn.Module]:
        kernel = self.model.kernel
        return [kernel.backbone, *([] if kernel.head is None else [kernel.head])]

    def fsdp_modules(self) -> list[nn.Module]:
        return self.model.kernel.fsdp_modules()

    def deepcopy_memo(self) -> dict[int, Any]:
        return {id(part): part for part in (self.training_set, self.validation_set)}
