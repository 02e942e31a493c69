"""What the recipes of generators share: the networks, how they are sampled, and a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt, field_validator, model_validator
from torch import Tensor, nn

from tmatch.backbone import DiT, Llama
from tmatch.data import ShapeImages
from tmatch.files import write_tensors
from tmatch.guidance import GUIDANCE_SCHEDULES
from tmatch.sampling import CodeSampling, SamplingParams, Unmasking
from tmatch.model import Model
from tmatch.runs.settings import Split
from tmatch.runs.finetune import StartSettings
from tmatch.runs.finetune import merge_lora
from tmatch.solver import Euler, Solver
from tmatch.tensors import positive_int
from tmatch.conditioning import Conditioner
from tmatch.train import GeneratorTask, Task, TrainConfig, Trainer, checkpoint
from tmatch.config import Config
from tmatch.ranks import rank_and_world_size
from tmatch.variants import HeadConfig, variant

Shape = tuple[int, int, int]
"""Of a state: rows, columns, channels."""


class BackboneSettings(Config):
    """The backbone."""

    kind: Literal["dit", "llama"] = "dit"  # llama for variants that need no time
    width: int = Field(default=128, gt=0)
    depth: int = Field(default=4, gt=0)
    heads: int = Field(default=4, gt=0)
    checkpointing: bool = False  # compute blocks twice, to save memory


class HeadSettings(Config):
    """The flow head, for variants that have one."""

    width: int = Field(default=128, gt=0)
    depth: int = Field(default=2, gt=0)
    samples_per_token: int = Field(default=1, gt=0)  # pairs of (s, noise) a token in training
    patch: tuple[PositiveInt, PositiveInt] | None = None  # backbone tokens drawn jointly
    token_fraction: float = Field(default=1.0, gt=0, le=1)  # of the tokens, those the head learns from at a step


class SamplingSettings(Config):
    """How the model is sampled unless told otherwise; a variant takes what concerns it."""

    steps: int | None = Field(default=16, gt=0)  # transitions; none for the variant's own
    head_steps: int = Field(default=4, gt=0)  # solver steps of the head in each
    guidance: float = 2.0  # 1 is none
    schedule: Literal["constant", "rising", "falling"] = "constant"  # of the guidance, over the time
    iterations: int | None = Field(default=None, gt=0)  # of masked variants; none for a token each
    order: Literal["random", "raster", "confidence"] = "random"  # in which masked variants draw tokens
    confidence_temperature: float = Field(default=1.0, ge=0)  # of the noise on the confidence, for that order
    temperature: float = Field(default=1.0, ge=0)  # of codes; 0 takes the likeliest
    top_k: int | None = Field(default=None, gt=0)  # draw from so many of the likeliest codes
    top_p: float | None = Field(default=None, gt=0, le=1)  # draw from the likeliest codes of this probability

    def arguments(self, solver: Callable[[int], Solver] = Euler) -> dict[str, Any]:
        """What `TextToImage.generate` takes of it."""
        unmasking = Unmasking(self.iterations, self.order, self.confidence_temperature)
        choice = CodeSampling(self.temperature, self.top_k, self.top_p)
        return {
            "steps": self.steps,
            "guidance": self.guidance,
            "schedule": GUIDANCE_SCHEDULES[self.schedule],
            "params": SamplingParams(solver(self.head_steps), unmasking=unmasking, codes=choice),
        }


@dataclass(frozen=True)
class AssumedData:
    """Data that is still to come: the paper's, unless told otherwise."""

    size: int = 256
    """pixels of a side"""
    factor: int = 8
    """pixels of a side that the autoencoder makes one number of"""
    channels: int = 4
    """of its latents"""
    code_factor: int = 16
    """pixels of a side that a discrete autoencoder makes one code of"""
    codes: int = 8192
    """that it has"""
    text_length: int = 128
    """tokens of a caption"""
    text_width: int = 4096
    """of their embedding"""

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            positive_int(f"--expected.{name.replace('_', '-')}", number)


@dataclass(frozen=True)
class InputShapes:
    """The shape of a state, the length and width of a text, and the number of codes where states are made of them."""

    shape: Shape
    text: tuple[int, int]
    codes: int | None = None
    origin: str = "the recipe's data"


class TrainedRecipe(Config, ABC):
    """A generator, its training and its sampling; where its data comes from is said by those that build on it."""

    train: TrainConfig
    variant: str = Field(description="a row of `tmatch variants`")
    patch: tuple[PositiveInt, PositiveInt] = Field(
        default=(2, 2), description="what a token covers, in latent (or real) pixels"
    )
    backbone: BackboneSettings = BackboneSettings()
    head: HeadSettings = HeadSettings()
    sampling: SamplingSettings = SamplingSettings()
    start: StartSettings = StartSettings()
    drop: float = Field(default=0.1, ge=0, le=1, description="share of captions left empty, for guidance")

    @field_validator("variant")
    @classmethod
    def _known(cls, name: str) -> str:
        variant(name)
        return name

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        row = variant(self.variant)
        if row.discrete and self.patch != (1, 1):
            raise ValueError(f"'{self.variant}' draws codes, each a token by itself: set patch to (1, 1).")
        if self.backbone.kind == "llama" and row.timed:
            raise ValueError(f"'{self.variant}' needs a backbone that reads the time: set backbone.kind to dit.")
        try:
            row.parametrization.grid(row.times, self.sampling.steps)
        except ValueError as error:
            raise ValueError(f"{error} For the variant's own steps: --sampling.steps None.") from error
        return self

    def eval_prompts(self, count: int, split: Split = "test") -> ShapeImages | None:
        """Captions of which an exact checker can tell whether an image satisfies them, where there is one."""
        return None

    @abstractmethod
    def sizes(self, expected: "AssumedData") -> "InputShapes":
        """Of what the model reads; as `expected` where the data is not there yet."""

    def network(self, shape: Shape, condition_width: int, codes: int | None = None) -> Model:
        """The model of states of a shape, with weights from the generator as it stands."""
        row, channels, own = variant(self.variant), shape[-1], self.head
        if row.discrete != (codes is not None):
            kind = "codes: give a discrete autoencoder" if row.discrete else "latents: give a continuous autoencoder"
            raise ValueError(f"'{self.variant}' draws {kind}, or data prepared with one.")
        iterations, tokens = self.sampling.iterations, shape[0] * shape[1]
        if iterations is not None and iterations > tokens:
            raise ValueError(f"There are {tokens} tokens an image, and sampling.iterations is {iterations}: lower it.")
        backbone = self._backbone(self.backbone.width if row.embeds else channels, condition_width, row.timed)
        return row.build(backbone, channels, HeadConfig(**own.model_dump()), codes)

    def _backbone(self, channels: int, condition_width: int, timed: bool) -> nn.Module:
        own = self.backbone
        if own.kind == "llama":
            return Llama(channels, own.width, own.depth, own.heads, condition_width, checkpointing=own.checkpointing)
        return DiT(
            channels, own.width, own.depth, own.heads, condition_width, timed=timed, checkpointing=own.checkpointing
        )

    def preflight(self, out: Path) -> None:
        """Refuse what a run would refuse of its data and of the networks; of these nothing is allocated.

        Of a run that has begun, what it began with may be gone.
        """
        self.train.resolve_device()
        if checkpoint.latest(out) is not None:
            return
        sizes = self.sizes(AssumedData())
        with torch.device("meta"):
            self.start.require_fit(self.network(sizes.shape, sizes.text[1], sizes.codes))

    def fit(
        self,
        task: GeneratorTask,
        out: Path,
        draw: "Draw",
        begin: Callable[[], None],
        finish: Callable[[GeneratorTask], dict[str, Any]],
        contents: str,
        progress: bool,
    ) -> dict[str, Any] | None:
        """Train a task, or go on; the answer is that of `finish`, or None where the run was interrupted.

        `begin` is called when it is clear that the run in `out` is this one, `finish` with the averaged networks. Of
        several processes the first alone writes and finishes; the others answer {}.
        """

        def preview(task: Task) -> Tensor:
            assert isinstance(task, GeneratorTask)
            return draw(task.model, task.encoder)

        self.start.apply(task, self.train.seed, out, rank_and_world_size()[0] == 0)
        trainer = Trainer(task, self.train, out, about=self, preview=preview, contents=contents)
        first = trainer.processes.rank == 0
        trainer.resume()
        if first:
            begin()
        if first and trainer.step < self.train.steps:  # what an earlier, shorter run left is no longer the newest
            for name in ("model.safetensors", "result.json"):
                (out / name).unlink(missing_ok=True)
        if not trainer.run(progress=progress):
            return None
        average = trainer.processes.gather(trainer.ema)
        if average is not None:
            write_tensors(out / "model.safetensors", merge_lora(average.state_dict()))
            trainer.processes.to_device(average)
        trainer.processes.drain()  # the others end here, while the first measures
        if average is None:
            return {}
        assert isinstance(average, GeneratorTask)
        return finish(average)


Draw = Callable[[Model, Conditioner], Tensor]
"""A sheet of images by a model and the text encoder trained with it."""
