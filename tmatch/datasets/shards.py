"""Data shards that `tmatch prepare` writes: images and captions are encoded, or labels stored, and streamed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from tmatch.codec import Codec, Patchify
from tmatch.codec.diffusers import load_autoencoder
from tmatch.conditioning import Conditioner, EmbeddedText
from tmatch.conditioning.transformers import load_text_encoder
from tmatch.config import MAX_LAYERS, Count, Dimension, NonemptyPath, free_field
from tmatch.data import InMemory
from tmatch.data.manifest import AutoencoderIdentity, Identity, TextIdentity
from tmatch.data.shards import MANIFEST, ShardSet
from tmatch.data.stream import StreamedStates
from tmatch.datasets.base import (
    PREVIEWS,
    AssumedData,
    DataConfig,
    Dataset,
    Encoders,
    InputShapes,
    OpenContext,
    Shape,
    WordsConfig,
    preview_inputs,
    without_text,
)
from tmatch.extras import MissingExtra
from tmatch.hub import HubOptions
from tmatch.ranks import local_rank_and_world_size, rank_and_world_size
from tmatch.train import Captioned

AUTOENCODER_FOLDER, TEXT_FOLDER = "autoencoder", "text_encoder"
"""Folders of encoders that are exported with a model."""


class ShardEncoders(Encoders):
    """The pretrained encoders that the data shards were made with; without captions, the conditioner is the run's."""

    kind: Literal["shards"] = "shards"
    autoencoder: AutoencoderIdentity
    text: TextIdentity | None = None

    @model_validator(mode="after")
    def _one_conditioner(self) -> Self:
        if (self.text is None) == (self.conditioning is None):
            raise ValueError("A model has either a pretrained text encoder or a conditioner of its own.")
        return self

    @property
    def condition_width(self) -> int | None:
        return super().condition_width if self.text is None else self.text.width

    @property
    def condition_length(self) -> int:
        return super().condition_length if self.text is None else self.text.max_length

    def conditioner(self, folder: Path, hub: HubOptions = HubOptions()) -> Conditioner:
        if self.text is None:
            return super().conditioner(folder, hub)
        with _exported_or_named(folder, TEXT_FOLDER, self.text.name) as name:
            encoder = load_text_encoder(name, self.text.max_length, self.text.precision, hub)
        _require_same_encoder(self.text, TextIdentity(**encoder.identity()))
        return encoder

    def codec(self, patch: Patchify, folder: Path | None, hub: HubOptions = HubOptions()) -> Codec:
        with _exported_or_named(folder, AUTOENCODER_FOLDER, self.autoencoder.name) as name:
            autoencoder = load_autoencoder(name, self.autoencoder.precision, hub)
        _require_same_encoder(self.autoencoder, AutoencoderIdentity(**autoencoder.identity()))
        return Codec(patch, autoencoder)

    def codebook_size(self, folder: Path) -> int | None:
        return self.autoencoder.codebook_size

    def require_same(self, other: Encoders, model: str) -> None:
        same = isinstance(other, ShardEncoders) and not other.autoencoder.differs(self.autoencoder)
        if isinstance(other, ShardEncoders) and self.text is not None:
            same = same and other.text is not None and not other.text.differs(self.text)
        if not same:
            raise ValueError(
                f"{model} was trained with other encoders than these data shards were prepared with: prepare the "
                "images with its encoders, or train without init.model."
            )


class ShardsData(DataConfig):
    """Data shards that `tmatch prepare` wrote; their encoders are frozen."""

    kind: Literal["shards"] = "shards"
    folders: tuple[NonemptyPath, ...] = free_field((Path("shards"),), "folders from `tmatch prepare`", min_length=1)
    validation: NonemptyPath | None = free_field(None, "another such folder, for validation")
    window: Count = Field(default=8, description="number of shards to shuffle among each other")
    label_width: Dimension = Field(
        default=128, description="width of the learned vector of a class, if there are labels"
    )
    workers: int = free_field(0, "processes that read ahead", ge=0, le=MAX_LAYERS)

    @field_validator("folders", mode="before")
    @classmethod
    def _one_or_several(cls, folders: object) -> object:
        if isinstance(folders, str | Path):
            return (folders,)
        return tuple(folders) if isinstance(folders, list) else folders  # JSON has lists only

    def open(self, context: OpenContext) -> Dataset:
        patch, device = context.patch, context.train.resolve_device()
        training, validation, encoders, shape, grids = self._describe(patch)
        held_out = None if validation is None else _first_samples(validation, context.validation_images, patch, device)
        shown = held_out or _first_samples(training, PREVIEWS, patch, device)
        rank, world_size = rank_and_world_size()
        classes, own = training.manifest.settings.classes, encoders.conditioning
        states = StreamedStates(
            self.folders, patch, context.train.seed, self.window, self.workers, device, rank, world_size,
            local_rank_and_world_size(),
        )  # fmt: skip
        dataset = Dataset(
            train=states,
            validation=held_out,
            shape=shape,
            grids=grids,
            encoders=encoders,
            build_conditioner=lambda: encoders.conditioner(context.out) if own else EmbeddedText(training.null()),
            open_codec=lambda: encoders.codec(patch, None).to(device),
            codebook_size=encoders.autoencoder.codebook_size,
            previews=preview_inputs(classes, shown.captions),
            fingerprint=training.manifest.contents(),
            images=len(training),
        )
        if rank == 0:
            images = f"{len(training):,} images {training.manifest.settings.conditions} from {training}"
            print(f"tmatch: training on {images}", file=sys.stderr, flush=True)
        if context.train.preview_every and rank == 0:
            with _adding("Previews need it; --train.preview-every 0 trains without previews."):
                dataset.codec  # noqa: B018, fail now and not after many steps
        context.distributed.barrier()  # rank 0 may have to download it
        return dataset

    def input_shapes(
        self, patch: Patchify, autoencoder: str | None, text: WordsConfig | None, discrete: bool, assumed: AssumedData
    ) -> InputShapes:
        if all((folder / MANIFEST).is_file() for folder in self.folders):
            training, _, encoders, shape, _ = self._describe(patch)
            lengths, size = (encoders.condition_length, encoders.condition_width), encoders.autoencoder.codebook_size
            classes = None if (names := training.manifest.settings.classes) is None else len(names)
            return InputShapes(shape, lengths, size, f"from the data shards in {training}", classes)
        factor, channels = (assumed.code_factor, 1) if discrete else (assumed.factor, assumed.channels)
        if any(assumed.size % (factor * side) for side in patch.patch):
            raise ValueError(f"Images of {assumed.size} pixels do not divide into tokens: set another --assumed.size.")
        rows, columns = (assumed.size // factor // side for side in patch.patch)
        shape = (rows, columns, channels * patch.patch[0] * patch.patch[1])
        captions, labels = (assumed.text_length, assumed.text_width), (1, self.label_width)
        size = assumed.codebook_size if discrete else None
        origin = "assumed (--assumed.*), since there are no data shards yet"
        return InputShapes(shape, captions if assumed.classes is None else labels, size, origin, assumed.classes)

    def require_available(self) -> None:
        ShardSet(*self.folders)

    def _describe(
        self, patch: Patchify
    ) -> tuple[ShardSet, ShardSet | None, ShardEncoders, Shape, tuple[tuple[int, int], ...]]:
        """The training and validation sets, the encoders, the most common shape of a state, and all grids of tokens."""
        training = ShardSet(*self.folders)
        training.require_files()
        settings, (down, across) = training.manifest.settings, patch.patch
        validation = None if self.validation is None else ShardSet(self.validation)
        if validation is not None:
            validation.require_files()
            validation.require(settings)
        sizes = training.manifest.sizes()
        held_out = () if validation is None else validation.manifest.sizes()
        for height, width in sorted({*sizes, *held_out}):
            if height % down or width % across:
                where = training if (height, width) in sizes else self.validation
                raise ValueError(
                    f"Latents of {where} are {height} x {width}, which patches of {down} x {across} do not divide: "
                    "set patch, or prepare the data with another --multiple."
                )
        height, width = sizes.most_common(1)[0][0]
        shape = (height // down, width // across, settings.autoencoder.channels * down * across)
        grids = tuple((height // down, width // across) for height, width in sorted(sizes))
        own = None if settings.text is not None else without_text(settings.classes, self.label_width)
        encoders = ShardEncoders(autoencoder=settings.autoencoder, text=settings.text, conditioning=own)
        return training, validation, encoders, shape, grids

    def anonymous(self) -> "ShardsData":
        return self.model_copy(update={"folders": (Path("shards"),), "validation": None})


def _first_samples(shards: ShardSet, count: int, patch: Patchify, device: torch.device) -> Captioned:
    """The first samples of the most common size, in memory."""
    size = shards.manifest.sizes().most_common(1)[0][0]
    read = (shards.read(number) for number, shard in enumerate(shards.manifest.shards) if shard.size == size)
    pairs = ((samples.latents[k], samples.condition(k, 0)) for samples in read for k in range(len(samples)))
    latents, captions = zip(*islice(pairs, count), strict=True)
    return Captioned(InMemory(patch.encode(torch.stack(latents).float().to(device))), captions)


@contextmanager
def _adding(advice: str) -> Iterator[None]:
    """Add advice to an error."""
    try:
        yield
    except MissingExtra:
        raise
    except ValueError as error:
        raise ValueError(f"{error} {advice}") from error


@contextmanager
def _exported_or_named(folder: Path | None, part: str, name: str) -> Iterator[str]:
    """The encoder in the model's folder, or else the one of that name."""
    if folder is None or (folder / part).is_dir():
        yield name if folder is None else str(folder / part)
    else:
        with _adding(f"It may also be placed in {folder / part}."):
            yield name


def _require_same_encoder(saved: Identity, found: Identity) -> None:
    if differs := saved.differs(found):
        raise ValueError(f"{saved.name} has {differs} than the model was trained with; restore the original encoder.")
