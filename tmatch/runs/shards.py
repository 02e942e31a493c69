"""Training a text-to-image generator on the shards that `tmatch prepare` makes."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import Field, PositiveInt, field_validator
from torch import Tensor

from tmatch.codec import Codec
from tmatch.data import InMemory
from tmatch.data.images import grid
from tmatch.files import write_text
from tmatch.model import Model
from tmatch.rng import seeded_init
from tmatch.codec.patch import Patchify
from tmatch.data.manifest import AutoencoderIdentity, Identity, TextIdentity
from tmatch.data.shards import MANIFEST, ShardSet
from tmatch.data.stream import StreamedStates
from tmatch.codec.diffusers import load_autoencoder
from tmatch.conditioning.transformers import load_text_encoder
from tmatch.hub import HubOptions
from tmatch.hub import MissingExtra
from tmatch.runs.base import AssumedData, InputShapes, TrainedRecipe
from tmatch.generation import TextToImage
from tmatch.conditioning import EmbeddedText, Conditioner
from tmatch.train import Captioned, GeneratorTask, checkpoint
from tmatch.config import Config
from tmatch.ranks import rank_and_world_size, local_rank_and_world_size
from tmatch.variants import variant

PREVIEWS = 16
AnyIdentity = TypeVar("AnyIdentity", bound=Identity)

AUTOENCODER, TEXT = "autoencoder", "text_encoder"
"""Where encoders that come with a model are, in its folder."""


class ShardRecipe(TrainedRecipe):
    """Everything about a run on shards; no other key is taken. Encoders are those of the shards, and not trained."""

    shards: tuple[Path, ...] = Field(
        default=(Path("shards"),), min_length=1, description="folders that `tmatch prepare` made; one, or several"
    )
    validation: Path | None = Field(default=None, description="another, of images that are not trained on")
    validation_images: int = Field(default=256, gt=0, description="images of the validation loss")
    window: int = Field(default=8, gt=0, description="shards that are mixed with each other")
    workers: int = Field(default=0, ge=0, description="processes that read ahead")

    @field_validator("shards", mode="before")
    @classmethod
    def _one_is_several(cls, shards: object) -> object:
        if isinstance(shards, str | Path):
            return (shards,)
        return tuple(shards) if isinstance(shards, list) else shards  # of JSON

    def run(self, out: Path, progress: bool = False) -> dict[str, Any] | None:
        """Train, or go on training; then write the averaged weights.

        The answer is None where the run was interrupted; the same call goes on.
        """
        checkpoint.require_free(out)
        processes = self.train.processes()
        training, validation = self._data()
        about = self.about(training, validation)
        device, encoder = self.train.resolve_device(), EmbeddedText(training.null())
        held_out = None if validation is None else self._held_out(validation, self.validation_images, device)
        shown = held_out or self._held_out(training, PREVIEWS, device)
        with seeded_init(self.train.seed):
            model = self.network(about.shape, encoder.width, about.autoencoder.codes)
        states = StreamedStates(
            self.shards,
            Patchify(self.patch),
            self.train.seed,
            self.window,
            self.workers,
            device,
            *rank_and_world_size(),
            local_rank_and_world_size(),
        )
        preview = Preview(about, shown.captions[:PREVIEWS])
        if rank_and_world_size()[0] == 0:
            print(f"tmatch: training on the {len(training)} images of {training}", file=sys.stderr, flush=True)
        self._require_same_encoders(about, out)
        if self.train.preview_every and rank_and_world_size()[0] == 0:
            with _adding("Images on the way need it; --train.preview-every 0 trains without."):
                preview.codec  # noqa: B018, so that one that cannot be had is missed now, not after many steps
        processes.barrier()  # for the first, which may have had to fetch it

        def finish(_: GeneratorTask) -> dict[str, Any]:
            result = {"weights": "model.safetensors", "samples": len(training)}
            write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
            return result

        return self.fit(
            GeneratorTask(model, encoder, states, held_out, self.drop), out, preview,
            lambda: write_text(out / "model.json", about.model_dump_json(indent=2) + "\n"), finish,
            training.manifest.contents(), progress,
        )  # fmt: skip

    def _data(self) -> tuple[ShardSet, ShardSet | None]:
        """What is trained on, and what is held out."""
        training = ShardSet(*self.shards)
        validation = None if self.validation is None else ShardSet(self.validation)
        for shards in filter(None, (training, validation)):
            shards.require_files()
        return training, validation

    def preflight(self, out: Path) -> None:
        self._require_same_encoders(self.about(*self._data()), out)
        super().preflight(out)

    def sizes(self, expected: AssumedData) -> InputShapes:
        if all((folder / MANIFEST).is_file() for folder in self.shards):
            shards = ShardSet(*self.shards)
            about, origin = self.about(shards, None), f"the shards in {shards}"
            return InputShapes(about.shape, (about.text.longest, about.text.width), about.autoencoder.codes, origin)
        codes = variant(self.variant).discrete
        factor, channels = (expected.code_factor, 1) if codes else (expected.factor, expected.channels)
        if any(expected.size % (factor * side) for side in self.patch):
            raise ValueError(f"Images of {expected.size} do not divide into tokens: give another --expected.size.")
        rows, columns = (expected.size // factor // side for side in self.patch)
        shape = (rows, columns, channels * self.patch[0] * self.patch[1])
        text, origin = (expected.text_length, expected.text_width), "what is --expected, for there are no shards yet"
        return InputShapes(shape, text, expected.codes if codes else None, origin)

    def _require_same_encoders(self, about: "AboutShards", out: Path) -> None:
        """Refuse to start from a model that reads other latents or other texts."""
        if self.start.model is None or checkpoint.latest(out) is not None:
            return
        from tmatch.runs.load import about_model  # which knows every recipe, this one among them

        _, other = about_model(self.start.model)
        same = isinstance(other, AboutShards) and not (
            other.autoencoder.differs(about.autoencoder) or other.text.differs(about.text)
        )
        if not same:
            raise ValueError(
                f"{self.start.model} was trained with other encoders than those of {self.shards[0]}: prepare images "
                "with its own, or train anew."
            )

    def about(self, training: ShardSet, validation: ShardSet | None) -> "AboutShards":
        """What the model is: its states have the most common size."""
        settings = training.manifest.settings
        if validation is not None:
            validation.require(settings.autoencoder, settings.text)
        sizes = training.manifest.sizes()
        held_out = () if validation is None else validation.manifest.sizes()
        for height, width in sorted({*sizes, *held_out}):
            if height % self.patch[0] or width % self.patch[1]:
                where = training if (height, width) in sizes else self.validation
                raise ValueError(
                    f"Latents of {where} are {height} x {width}, which tokens of {self.patch[0]} x "
                    f"{self.patch[1]} do not fill: set patch, or prepare the data with another --multiple."
                )
        height, width = sizes.most_common(1)[0][0]
        rows, columns = height // self.patch[0], width // self.patch[1]
        shape = (rows, columns, settings.autoencoder.channels * self.patch[0] * self.patch[1])
        grids = tuple((height // self.patch[0], width // self.patch[1]) for height, width in sorted(sizes))
        return AboutShards(recipe=self, shape=shape, grids=grids, autoencoder=settings.autoencoder, text=settings.text)

    def _held_out(self, shards: ShardSet, count: int, device: torch.device) -> Captioned:
        """The first samples of the most common size, in memory."""
        size = shards.manifest.sizes().most_common(1)[0][0]
        latents: list[Tensor] = []
        captions: list[Tensor] = []
        for number, shard in enumerate(shards.manifest.shards):
            if shard.size == size and len(latents) < count:
                samples = shards.read(number)
                for k in range(min(len(samples), count - len(latents))):
                    latents.append(samples.latents[k])
                    captions.append(samples.caption(k, 0))
        states = Patchify(self.patch).encode(torch.stack(latents).float().to(device))
        return Captioned(InMemory(states), captions)


class AboutShards(Config):
    """What a model of shards is, beside its weights: the encoders that its shards were made with are part of it."""

    recipe: ShardRecipe
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    grids: tuple[tuple[PositiveInt, PositiveInt], ...] = ()
    """Rows and columns of tokens that were trained on; models of before do not say."""
    autoencoder: AutoencoderIdentity
    text: TextIdentity

    def codec(self, folder: Path | None = None, hub: HubOptions = HubOptions()) -> Codec:
        """Latents to images; by the autoencoder in the model's folder, if there is one."""
        with _looking_for(folder, AUTOENCODER, self.autoencoder.name) as name:
            autoencoder = load_autoencoder(name, self.autoencoder.precision, hub)
        _require_same(self.autoencoder, AutoencoderIdentity(**autoencoder.identity()))
        return Codec(Patchify(self.recipe.patch), autoencoder)

    def pipeline(self, folder: Path, hub: HubOptions = HubOptions()) -> TextToImage:
        """The networks of a run, with other weights."""
        with _looking_for(folder, TEXT, self.text.name) as name:
            encoder = load_text_encoder(name, self.text.longest, self.text.precision, hub)
        _require_same(self.text, TextIdentity(**encoder.identity()))
        with seeded_init(self.recipe.train.seed):
            model = self.network(folder)
        return TextToImage(model, encoder, self.codec(folder, hub), self.shape, self.grids)

    def network(self, folder: Path) -> Model:
        """The generator alone, with other weights."""
        return self.recipe.network(self.shape, self.text.width, self.autoencoder.codes)


@contextmanager
def _adding(advice: str) -> Iterator[None]:
    """Say more on what is wrong."""
    try:
        yield
    except MissingExtra:
        raise
    except ValueError as error:
        raise ValueError(f"{error} {advice}") from error


@contextmanager
def _looking_for(folder: Path | None, part: str, name: str) -> Iterator[str]:
    """The encoder that comes with the model, or the one of a name."""
    if folder is None or (folder / part).is_dir():
        yield name if folder is None else str(folder / part)
        return
    with _adding(f"It may also lie in {folder / part}."):
        yield name


def _require_same(then: AnyIdentity, now: AnyIdentity) -> None:
    if differs := then.differs(now):
        raise ValueError(
            f"{then.name} has {differs} than the model was trained with; give it what it had, or train anew."
        )


class Preview:
    """Draws the captions of some samples, which are encoded already; the autoencoder is opened when it is needed."""

    def __init__(self, about: AboutShards, captions: Sequence[Tensor]) -> None:
        self.about = about
        self.captions = captions

    @cached_property
    def codec(self) -> Codec:
        """Latents to images."""
        return self.about.codec().to(self.about.recipe.train.resolve_device())

    def __call__(self, model: Model, encoder: Conditioner) -> Tensor:
        pipeline = TextToImage(model, encoder, self.codec, self.about.shape)
        how = self.about.recipe.sampling.arguments()
        return grid(pipeline.generate(self.captions, range(len(self.captions)), **how).images)
