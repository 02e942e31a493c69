"""How to train."""

from contextlib import AbstractContextManager
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, model_validator

from tmatch.config import Config
from tmatch.ranks import rank_and_world_size
from tmatch.tensors import Device, Precision, matmul_precision, resolve_device
from tmatch.train.processes import Parallel, SingleProcess, init_distributed

Share = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Config):
    """How to descend; every figure has its place here, and no other key is taken."""

    steps: int = Field(gt=0)  # of the optimizer
    batch: int = Field(default=128, gt=0)  # samples a step
    accumulate: int = Field(default=1, gt=0)  # parts a batch is computed in, to save memory
    learning_rate: float = Field(default=1e-3, gt=0)  # at its highest
    warmup: int = Field(default=100, ge=0)  # steps until it is reached
    cooldown: float = Field(default=0.0, ge=0, le=1)  # share of the steps over which it falls to zero at the end
    weight_decay: float = Field(default=0.0, ge=0)  # of AdamW
    betas: tuple[Share, Share] = (0.9, 0.99)  # of AdamW
    clip: float = Field(default=1.0, gt=0)  # the largest norm of the gradient
    ema: float = Field(default=0.999, ge=0, lt=1)  # decay of the averaged weights
    checkpoint_every: int = Field(default=500, gt=0)  # steps
    validate_every: int = Field(default=500, ge=0)  # steps; 0 is never
    preview_every: int = Field(default=0, ge=0)  # steps between images of what is learnt; 0 is never
    tensorboard: bool = False  # write losses and images for TensorBoard too
    compile: bool = False  # compile the networks first
    precision: Precision = "float32"  # of matrix products
    device: Device = "auto"  # 'auto' takes the accelerator if there is one
    parallel: Parallel = "replicate"  # the weights, between the processes of torchrun (DDP), or shard them (FSDP2)
    replicas: int = Field(default=1, gt=0)  # of weights that are sharded, so that gathering stays in a machine (HSDP)
    seed: int = Field(default=0, ge=0, lt=2**31)  # of weights, order and noise

    FREE: ClassVar[tuple[str, ...]] = (
        "checkpoint_every", "validate_every", "preview_every", "tensorboard", "workers", "parallel", "replicas",
        "accumulate", "device", "compile", "shards", "validation", "validation_images", "held_out", "sampling",
        "backbone.checkpointing",
    )  # fmt: skip
    """What the weights do not depend on, but for rounding: a run goes on with other values of these.

    Shards may lie elsewhere: they are known by their contents.
    """

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch % self.accumulate:
            raise ValueError(f"A batch of {self.batch} does not divide into {self.accumulate} parts.")
        if self.replicas > 1 and self.parallel == "replicate":
            raise ValueError("train.replicas is for sharded weights: set train.parallel to shard, or leave it out.")
        return self

    def parts(self) -> int:
        """Into how many a batch is cut, over all processes."""
        world = rank_and_world_size()[1]
        parts = self.accumulate * world
        if world > 1 and world % self.replicas:
            raise ValueError(f"{world} processes do not divide into {self.replicas} train.replicas.")
        if self.batch % parts:
            raise ValueError(
                f"A batch of {self.batch} does not divide into {parts} parts; make train.batch a multiple of {parts}."
            )
        return parts

    def resolve_device(self) -> torch.device:
        """Where to compute."""
        return resolve_device(self.device)

    def processes(self) -> SingleProcess:
        """Who trains: this process, or all that torchrun started."""
        self.parts()  # refuses what does not divide
        precision = torch.bfloat16 if self.precision == "bfloat16" else None
        return init_distributed(self.parallel, self.resolve_device(), precision, self.replicas)

    def autocast(self) -> AbstractContextManager[None]:
        """Matrix products in bfloat16 where that is asked for; losses and weights stay in float32."""
        return torch.autocast(self.resolve_device().type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def products(self) -> AbstractContextManager[None]:
        """Matrix products in TF32 where that is asked for, on the way back too."""
        return matmul_precision("tf32" if self.precision == "tf32" else "float32", self.resolve_device())

    def rate(self, step: int, steps: int | None = None) -> float:
        """Warm-up, then constant, then down to zero over the last `cooldown` share of the steps."""
        last = steps or self.steps
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (last - step) / (self.cooldown * last)) if self.cooldown else 1.0
        return self.learning_rate * rise * fall

    def ema_decay(self, step: int) -> float:
        """Short at first, so that early previews show the model and not its initial weights."""
        return min(self.ema, (1 + step) / (10 + step))
