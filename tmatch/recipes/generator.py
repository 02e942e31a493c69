"""Training a text-to-image generator."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Self

import torch
from pydantic import Field, PositiveInt, field_validator, model_validator
from torch import Tensor, nn

from tmatch.backbone import DiT, Llama
from tmatch.data import Codec, InMemory
from tmatch.data.pictures import grid
from tmatch.eval.captions import captions_satisfied
from tmatch.guidance import GUIDANCE_SCHEDULES
from tmatch.kernel import Choice, Decoding, Unmasking
from tmatch.patch import Patchify
from tmatch.recipes.autoencoder import copy_autoencoder, open_autoencoder
from tmatch.recipes.settings import AnyData, Data, Strict
from tmatch.sample import TextToImage
from tmatch.solver import Euler, Solver
from tmatch.text import WordEncoder
from tmatch.train import Captioned, GeneratorTask, Task, TrainConfig, Trainer, checkpoint
from tmatch.variants import HeadConfig, variant


class BackboneSettings(Strict):
    """The backbone."""

    kind: Literal["dit", "llama"] = "dit"  # llama for variants that need no time
    width: int = Field(default=128, gt=0)
    depth: int = Field(default=4, gt=0)
    heads: int = Field(default=4, gt=0)
    checkpointing: bool = False  # compute blocks twice, to save memory


class HeadSettings(Strict):
    """The flow head, for variants that have one."""

    width: int = Field(default=128, gt=0)
    depth: int = Field(default=2, gt=0)
    draws: int = Field(default=1, gt=0)  # pairs of (s, noise) a token in training
    patch: tuple[int, int] | None = None  # backbone tokens drawn jointly
    share: float = Field(default=1.0, gt=0, le=1)  # of the tokens, those the head learns from at a step


class TextSettings(Strict):
    """The text encoder that is trained along."""

    width: int = Field(default=128, gt=0)
    depth: int = Field(default=1, ge=0)
    heads: int = Field(default=4, gt=0)
    longest: int = Field(default=16, gt=0)  # words read of a caption


class SamplingSettings(Strict):
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
        choice = Choice(self.temperature, self.top_k, self.top_p)
        return {
            "steps": self.steps,
            "guidance": self.guidance,
            "schedule": GUIDANCE_SCHEDULES[self.schedule],
            "decoding": Decoding(solver(self.head_steps), unmasking=unmasking, choice=choice),
        }


class GeneratorRecipe(Strict, Generic[AnyData]):
    """Everything about a run of a generator; no other key is taken."""

    train: TrainConfig
    variant: str = Field(description="a row of `tmatch variants`")
    data: AnyData
    autoencoder: str = Field(
        default="shapes", description="the package's own, 'none' for pixels, or the folder of an autoencoder's run"
    )
    patch: tuple[int, int] = Field(default=(2, 2), description="what a token covers, in latent (or real) pixels")
    backbone: BackboneSettings = BackboneSettings()
    head: HeadSettings = HeadSettings()
    text: TextSettings = TextSettings()
    sampling: SamplingSettings = SamplingSettings()
    drop: float = Field(default=0.1, ge=0, le=1, description="share of captions left empty, for guidance")
    validation_images: int = Field(default=256, gt=0, description="pictures of the validation loss")
    held_out: int = Field(default=1000, gt=0, description="prompts to measure the finished model on")

    @field_validator("variant")
    @classmethod
    def _known(cls, name: str) -> str:
        variant(name)
        return name

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        row = variant(self.variant)
        if row.codes and self.patch != (1, 1):
            raise ValueError(f"'{self.variant}' draws codes, each a token by itself: set patch to (1, 1).")
        if self.backbone.kind == "llama" and row.timed:
            raise ValueError(f"'{self.variant}' needs a backbone that reads the time: set backbone.kind to dit.")
        if self.backbone.kind == "llama" and self.backbone.checkpointing:
            raise ValueError("A Llama has no checkpointing: leave it out, or set backbone.kind to dit.")
        try:
            row.parametrization.check_grid(row.times.grid(self.sampling.steps), row.times)
        except ValueError as error:
            raise ValueError(f"{error} For the variant's own steps: --sampling.steps None.") from error
        return self

    def build(self, codec: Codec, shape: tuple[int, int, int], vocabulary: tuple[str, ...]) -> TextToImage:
        """The networks, with weights from the seed; `shape` is that of a state."""
        text, row, channels = self.text, variant(self.variant), shape[-1]
        if row.codes != (codec.codes is not None):
            kind = "codes: give a discrete autoencoder" if row.codes else "latents: give a continuous autoencoder"
            raise ValueError(f"'{self.variant}' draws {kind}, one of the package's or the folder of a run.")
        iterations, tokens = self.sampling.iterations, shape[0] * shape[1]
        if iterations is not None and iterations > tokens:
            raise ValueError(f"There are {tokens} tokens a picture, and sampling.iterations is {iterations}: lower it.")
        own = self.head
        head = HeadConfig(own.width, own.depth, own.patch, own.draws, share=own.share, codes=codec.codes)
        with torch.random.fork_rng():  # the caller's own generator stays as it is
            torch.manual_seed(self.train.seed)
            encoder = WordEncoder(vocabulary, text.width, text.depth, text.heads, text.longest)
            backbone = self._backbone(self.backbone.width if row.embeds else channels, row.timed)
            model = row.build(backbone, channels, head)
        return TextToImage(model, encoder, codec, shape)

    def _backbone(self, channels: int, timed: bool) -> nn.Module:
        own, condition = self.backbone, self.text.width
        if own.kind == "llama":
            return Llama(channels, own.width, own.depth, own.heads, condition)
        return DiT(channels, own.width, own.depth, own.heads, condition, timed=timed, checkpointing=own.checkpointing)

    def codec(self, out: Path) -> Codec:
        """Pictures to states, as the run in `out` does it."""
        return Codec(Patchify(self.patch), open_autoencoder(self.autoencoder, out))

    def run(self, out: Path, progress: bool = False) -> dict[str, Any] | None:
        """Train, or go on training; then write the averaged weights, and measure them where there is a measure.

        The answer is None where the run was interrupted; the same call goes on.
        """
        print(f"tmatch: preparing the pictures for {out}", file=sys.stderr, flush=True)
        training = self.data.training()
        validation = self.data.validation(self.validation_images)
        copy_autoencoder(self.autoencoder, out)
        device = self.train.place()
        codec = self.codec(out).to(device)
        states = codec.encode_all(training, device)
        pipeline = self.build(codec, (*states.shape[1:3], states.shape[3]), self.data.vocabulary(training.captions))
        held_out = Captioned(InMemory(codec.encode_all(validation, device)), validation.captions)
        task = GeneratorTask(
            pipeline.model,
            pipeline.encoder,
            Captioned(InMemory(states, seed=self.train.seed), training.captions),
            held_out,
            self.drop,
        )

        def preview(task: Task) -> Tensor:
            assert isinstance(task, GeneratorTask)
            return self._draw(TextToImage(task.model, task.encoder, codec, pipeline.shape), validation.captions[:16])

        trainer = Trainer(task, self.train, out, about=self, preview=preview)
        trainer.resume()
        describe(self, pipeline, out)
        if trainer.step < self.train.steps:  # what an earlier, shorter run left is no longer the newest
            for name in ("model.safetensors", "result.json"):
                (out / name).unlink(missing_ok=True)
        if not trainer.run(progress=progress):
            return None
        checkpoint.write_tensors(out / "model.safetensors", trainer.ema.state_dict())
        assert isinstance(trainer.ema, GeneratorTask)
        return self._measure(TextToImage(trainer.ema.model, trainer.ema.encoder, codec, pipeline.shape), out)

    def _draw(self, pipeline: TextToImage, prompts: Sequence[str]) -> Tensor:
        return grid(pipeline.generate(prompts, range(len(prompts)), **self.sampling.arguments()).images)

    def _measure(self, pipeline: TextToImage, out: Path) -> dict[str, Any]:
        """What the finished run has to show, written beside its weights."""
        result: dict[str, Any] = {"weights": "model.safetensors"}
        prompts = self.data.checkable(self.held_out)
        if prompts is not None:
            measured = captions_satisfied(pipeline, prompts, **self.sampling.arguments())
            result |= {key: value for key, value in measured.record().items() if key != "seconds"}
        checkpoint.write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
        return result


class About(Strict):
    """What a model is, beside its weights."""

    recipe: GeneratorRecipe[Data]
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    vocabulary: tuple[str, ...]


def describe(recipe: GeneratorRecipe[Any], pipeline: TextToImage, out: Path) -> None:
    """Write all that is needed, beside the weights, to build the networks again."""
    assert isinstance(pipeline.encoder, WordEncoder)
    about = About(recipe=recipe, shape=pipeline.shape, vocabulary=pipeline.encoder.vocabulary)
    checkpoint.write_text(out / "model.json", about.model_dump_json(indent=2) + "\n")
