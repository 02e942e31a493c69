"""Training settings."""

from contextlib import AbstractContextManager
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator

from tmatch.config import MAX_STEPS, Config, Count, TrainingSteps, free_field
from tmatch.ranks import rank_and_world_size
from tmatch.tensors import Device, Precision, matmul_precision, resolve_device

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Config):
    """Optimizer and training-loop settings."""

    steps: TrainingSteps = Field(description="optimizer steps")
    batch_size: Count = Field(default=128, description="samples per step, over all processes")
    gradient_accumulation_steps: Count = free_field(1, "micro-batches per step and process, to save memory")
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="'muon' is for the matrices of the blocks; AdamW takes the other weights"
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="peak learning rate")
    warmup: int = Field(default=100, ge=0, le=MAX_STEPS, description="steps of linear warm-up")
    cooldown: float = Field(default=0.0, ge=0, le=1, description="final fraction of the steps, with linear decay to 0")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.99), description="betas of AdamW")
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradient norm above which gradients are clipped")
    ema_decay: float = Field(default=0.999, ge=0, lt=1, description="decay of the averaged weights")
    checkpoint_every: TrainingSteps = free_field(500, "steps between checkpoints")
    validate_every: int = free_field(500, "steps between validations; 0 disables them", ge=0, le=MAX_STEPS)
    preview_every: int = free_field(0, "steps between sample sheets; 0 disables them", ge=0, le=MAX_STEPS)
    tensorboard: bool = free_field(False, "TensorBoard logs")
    compile: bool = free_field(False, "torch.compile for the networks")
    precision: Precision = Field(default="float32", description="precision of matrix products")
    device: Device = free_field("auto", "device; auto: the accelerator, if any")
    parallel: Literal["ddp", "fsdp"] = free_field("ddp", "replicated (DDP) or sharded (FSDP2) weights under torchrun")
    replicas: Count = free_field(1, "groups of processes that each hold all FSDP shards (HSDP)")
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of weights, data order and noise")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.replicas > 1 and self.parallel == "ddp":
            raise ValueError("train.replicas requires sharded weights: set train.parallel to fsdp.")
        return self

    def parts(self) -> int:
        """Return the number of micro-batches per step, over all processes."""
        world = rank_and_world_size()[1]
        parts = self.gradient_accumulation_steps * world
        if world > 1 and world % self.replicas:
            raise ValueError(f"{world} processes are not divisible into {self.replicas} train.replicas.")
        if self.batch_size % parts:
            multiple = f"use a multiple of {parts}"
            raise ValueError(f"batch_size {self.batch_size} is not divisible into {parts} parts; {multiple}.")
        return parts

    def resolve_device(self) -> torch.device:
        """Return the device to train on."""
        return resolve_device(self.device)

    def autocast(self) -> AbstractContextManager[None]:
        """Run matrix products in bfloat16 if `precision` is bfloat16; losses and weights stay in float32."""
        return torch.autocast(self.resolve_device().type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def matmul_precision(self) -> AbstractContextManager[None]:
        """Run matrix products in TF32 if `precision` is tf32, in the backward pass too."""
        return matmul_precision("tf32" if self.precision == "tf32" else "float32", self.resolve_device())

    def learning_rate_at(self, step: int, steps: int | None = None) -> float:
        """Linear warm-up, then constant, then linear decay to zero over the last `cooldown` fraction of the steps."""
        last = steps or self.steps
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (last - step) / (self.cooldown * last)) if self.cooldown else 1.0
        return self.learning_rate * rise * fall

    def ema_decay_at(self, step: int) -> float:
        """min(ema_decay, (1 + step) / (10 + step)): early previews show the model and not its initial weights."""
        return min(self.ema_decay, (1 + step) / (10 + step))
