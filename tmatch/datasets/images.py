"""Images that fit in memory once they are encoded."""

import hashlib
import shutil
import sys
from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from tmatch.codec import Codec, Patchify
from tmatch.codec.saved import NO_AUTOENCODERS, SETTINGS, SHIPPED, WEIGHTS, autoencoder_digest, open_autoencoder
from tmatch.conditioning.words import words_of
from tmatch.data import CaptionedImages, InMemory
from tmatch.data.encode import encode_cached
from tmatch.datasets.base import (
    AssumedData,
    DataConfig,
    Dataset,
    Encoders,
    InputShapes,
    OpenContext,
    WordsConfig,
    preview_inputs,
    without_text,
)
from tmatch.files import atomic_folder, locked
from tmatch.hub import HubOptions
from tmatch.train import Captioned, checkpoint

AUTOENCODER = "autoencoder"
"""Folder of a run's autoencoder, inside the run's folder."""


class ImageEncoders(Encoders):
    """A conditioner whose weights are the run's own, and an autoencoder that ships with the package or the run."""

    kind: Literal["images"] = "images"
    conditioning: dict[str, Any]
    autoencoder: str
    digest: str | None = None
    """Of the autoencoder's weights; None without an autoencoder, or if not recorded."""

    def codec(self, patch: Patchify, folder: Path | None, hub: HubOptions = HubOptions()) -> Codec:
        where = Path(self.autoencoder) if folder is None else folder / AUTOENCODER
        codec = Codec(patch, open_autoencoder(self.autoencoder, where))
        if self.digest not in (None, autoencoder_digest(codec)):
            raise ValueError(
                f"The model in {folder} was trained with another autoencoder than '{self.autoencoder}' is now (other "
                "weights or another codebook); restore the original one or train again."
            )
        return codec

    def codebook_size(self, folder: Path) -> int | None:
        with torch.device("cpu"):  # even where the generator is built on the meta device
            return self.codec(Patchify((1, 1)), folder).codebook_size


class ImageData(DataConfig):
    """Captioned or labelled images: a subclass says where they come from."""

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.kind

    @abstractmethod
    def training(self) -> CaptionedImages:
        """Images to train on."""

    @abstractmethod
    def validation(self, count: int) -> CaptionedImages:
        """At most `count` images that are not trained on."""

    def autoencoder(self, given: str | None) -> str:
        """The autoencoder of a run: 'none' if it names none."""
        return given or "none"

    def conditioning(self, images: CaptionedImages, text: WordsConfig | None) -> dict[str, Any]:
        """Which conditioner to build: a row of `CONDITIONERS` and its arguments."""
        if images.classes is not None or all(caption is None for caption in images.captions):
            return without_text(images.classes, (text or WordsConfig()).width)
        vocabulary = tuple(sorted({word for caption in images.captions for word in words_of(caption)}))
        return {"kind": "words", "vocabulary": vocabulary, **(text or WordsConfig()).model_dump()}

    def fingerprint(self, images: CaptionedImages, codec: Codec) -> str:
        """Digest of the captions or labels, the names of classes, and the autoencoder."""
        parts = [*map(str, images.captions), *(images.classes or ()), autoencoder_digest(codec) or ""]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def open(self, context: OpenContext) -> Dataset:
        """Encode all images, or read them from the cache of encoded images."""
        training, validation = self.training(), self.validation(context.validation_images)
        name, device = self.autoencoder(context.autoencoder), context.train.resolve_device()
        resumed = checkpoint.latest(context.out) is not None
        folder = context.out / AUTOENCODER if resumed else Path(name)
        codec = Codec(context.patch, open_autoencoder(name, folder)).to(device)
        rows, columns, channels = codec.encode(training.load([0]).to(device)).shape[1:]
        if context.distributed.rank == 0 and not resumed:
            _keep_autoencoder(name, context.out)
        if context.distributed.rank == 0:
            how = {"none": "as pixels", "latents": "as latents"}.get(name, f"encoded by the autoencoder '{name}'")
            images = f"{len(training):,} images {training.conditions} from {self.name}"
            print(f"tmatch: training on {images}, {how}", file=sys.stderr, flush=True)
        context.distributed.barrier()
        encoders = ImageEncoders(
            conditioning=self.conditioning(training, context.text), autoencoder=name, digest=autoencoder_digest(codec)
        )
        states = [self._encoded(images, codec, context) for images in (training, validation)]
        return Dataset(
            train=Captioned(InMemory(states[0], seed=context.train.seed), training.captions),
            validation=Captioned(InMemory(states[1]), validation.captions),
            shape=(rows, columns, channels),
            grids=((rows, columns),),
            encoders=encoders,
            build_conditioner=partial(encoders.conditioner, context.out),
            open_codec=lambda: codec,
            codebook_size=codec.codebook_size,
            previews=preview_inputs(training.classes, validation.captions),
            fingerprint=self.fingerprint(training, codec),
            images=len(training),
        )

    def _encoded(self, images: CaptionedImages, codec: Codec, context: OpenContext) -> torch.Tensor:
        return encode_cached(codec, images, context.train.resolve_device(), context.progress)

    def input_shapes(
        self, patch: Patchify, autoencoder: str | None, text: WordsConfig | None, discrete: bool, assumed: AssumedData
    ) -> InputShapes:
        name, images = self.autoencoder(autoencoder), self.training()
        codec = Codec(patch, open_autoencoder(name, Path(name)))
        rows, columns, channels = codec.encode(images.load([0])).shape[1:]
        conditioning = self.conditioning(images, text)
        lengths = (conditioning.get("max_length", 1), conditioning.get("width"))
        classes = None if images.classes is None else len(images.classes)
        return InputShapes((rows, columns, channels), lengths, codec.codebook_size, classes=classes)


def _keep_autoencoder(name: str, out: Path) -> None:
    """Copy the autoencoder into the run's folder, unless it ships with the package."""
    if name in (*SHIPPED, *NO_AUTOENCODERS):
        return
    kept = out / AUTOENCODER
    if any(file.name not in (SETTINGS, WEIGHTS) for file in kept.glob("*")):
        raise ValueError(f"{kept} is where the run keeps its autoencoder, but holds other files; use another --out.")
    with locked(out):
        shutil.rmtree(kept, ignore_errors=True)
        with atomic_folder(kept) as draft:
            for file in (SETTINGS, WEIGHTS):
                shutil.copyfile(Path(name) / file, draft / file)
