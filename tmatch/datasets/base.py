"""The contract of a data set: `DataConfig.open() -> Dataset`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from tmatch.codec import Codec, Patchify
from tmatch.conditioning import CONDITIONERS, Conditioner
from tmatch.config import MAX_LAYERS, Config, Count, Dimension
from tmatch.data import CaptionedImages
from tmatch.hub import HubOptions
from tmatch.train import BatchSource, Captioned, TrainConfig
from tmatch.train.distributed import Distributed

Shape = tuple[int, int, int]
"""Rows, columns and channels of a state."""
Split = Literal["test", "validation", "withheld"]
PREVIEWS = 16
REFERENCE_IMAGES = 10_000
"""Real images that metrics compare generated images with, where the data has as many."""


def halves(count: int) -> dict[str, slice]:
    """At most `count` of the images held out for each split: every other one."""
    return {"test": slice(0, 2 * count, 2), "validation": slice(1, 2 * count, 2)}


class WordsConfig(Config):
    """Text encoder that is trained with the generator."""

    width: Dimension = Field(default=128, description="width of its vectors")
    depth: int = Field(default=1, ge=0, le=MAX_LAYERS, description="Transformer blocks")
    heads: Dimension = Field(default=4, description="attention heads")
    max_length: Dimension = Field(default=16, description="words of a caption that are read")


class AssumedData(Config):
    """Sizes to plan with where the data does not exist yet; the paper's by default."""

    size: Dimension = Field(default=256, description="height and width of an image in pixels")
    factor: Dimension = Field(default=8, description="downsampling factor of the autoencoder")
    channels: Dimension = Field(default=4, description="channels of a latent")
    code_factor: Dimension = Field(default=16, description="downsampling factor of a discrete autoencoder")
    codebook_size: Count = Field(default=8192, description="number of codes")
    classes: Count | None = Field(default=None, description="number of classes; None: captions")
    text_length: Dimension = Field(default=128, description="tokens per caption")
    text_width: Dimension = Field(default=4096, description="width of a text embedding")


@dataclass(frozen=True)
class InputShapes:
    """Shape of a state, length and width of a condition, and the codebook size of discrete states."""

    shape: Shape
    text: tuple[int, int | None]
    codebook_size: int | None = None
    origin: str = "from the recipe's data"
    classes: int | None = None
    """Number of classes, whose embeddings are trained with the model; None for captions."""


@dataclass(frozen=True)
class OpenContext:
    """What a data set needs to know about the run that opens it."""

    patch: Patchify
    train: TrainConfig
    out: Path
    autoencoder: str | None
    text: WordsConfig | None
    validation_images: int
    distributed: Distributed
    progress: bool = False


class Encoders(Config, ABC):
    """The encoders a model was trained with, as model.json stores them; `folder` is that of the model."""

    conditioning: dict[str, Any] | None = None
    """The conditioner that is trained with the model, a row of `CONDITIONERS` and its arguments; None if pretrained."""

    @property
    def condition_width(self) -> int | None:
        """Width of the condition; None for an unconditional model."""
        width = (self.conditioning or {}).get("width")
        return int(width) if width is not None else None

    @property
    def condition_length(self) -> int:
        """The maximum number of tokens of a condition."""
        return int((self.conditioning or {}).get("max_length", 1))

    def conditioner(self, folder: Path, hub: HubOptions = HubOptions()) -> Conditioner:
        """Inputs to conditions."""
        settings = dict(self.conditioning or {})
        return CONDITIONERS[settings.pop("kind")](**settings)

    @abstractmethod
    def codec(self, patch: Patchify, folder: Path | None, hub: HubOptions = HubOptions()) -> Codec:
        """States to images."""

    @abstractmethod
    def codebook_size(self, folder: Path) -> int | None:
        """Number of codes where states are discrete."""

    def require_same(self, other: "Encoders", model: str) -> None:
        """Reject a `model` to fine-tune whose encoders are incompatible with these."""


@dataclass
class Dataset:
    """Everything a run needs to know about its data."""

    train: BatchSource
    validation: Captioned | None
    shape: Shape
    grids: tuple[tuple[int, int], ...]
    encoders: Encoders
    build_conditioner: Callable[[], Conditioner]
    """Builds the conditioner to train with; its weights come from the current generator."""
    open_codec: Callable[[], Codec]
    codebook_size: int | None
    previews: Sequence[Any]
    """Inputs of the preview images."""
    fingerprint: str
    """Digest that a resumed run must match: captions and autoencoder, or the manifest of data shards."""
    images: int
    """Number of training images."""

    @cached_property
    def codec(self) -> Codec:
        """States to images, loaded on first use."""
        return self.open_codec()


def without_text(classes: Sequence[str] | None, width: int) -> dict[str, Any]:
    """The conditioner of images in classes, with vectors of a width, or without labels."""
    return {"kind": "none"} if classes is None else {"kind": "labels", "classes": tuple(classes), "width": width}


def preview_inputs(classes: Sequence[str] | None, captions: Sequence[Any]) -> Sequence[Any]:
    """Inputs of the preview images: every class in turn, or else the first captions."""
    return captions[:PREVIEWS] if classes is None else [k % len(classes) for k in range(PREVIEWS)]


class DataConfig(Config, ABC):
    """What to train on: a row of `DATASETS`, tagged by `kind`."""

    kind: str
    metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that a finished run reports."""

    @abstractmethod
    def open(self, context: OpenContext) -> Dataset:
        """Read the data."""

    @abstractmethod
    def input_shapes(
        self, patch: Patchify, autoencoder: str | None, text: WordsConfig | None, discrete: bool, assumed: AssumedData
    ) -> InputShapes:
        """Shapes of what the model reads; `assumed` where the data does not exist yet."""

    def require_available(self) -> None:
        """Raise if the data does not exist yet."""

    def eval_prompts(self, count: int, split: Split = "test") -> CaptionedImages | None:
        """Images whose prompts a model is evaluated on, where the data has any; `split` names which."""
        return None

    def eval_reference(self, split: Split = "test") -> CaptionedImages | None:
        """Real images that the distribution of generated images is compared with."""
        return self.eval_prompts(REFERENCE_IMAGES, split)

    def at(self, folder: Path | None) -> "DataConfig":
        """The same data in another folder, if one is given."""
        if folder is not None:
            raise ValueError("The model was not trained on a folder of images; leave out --data.")
        return self

    def anonymous(self) -> "DataConfig":
        """The same without paths of this machine, for export."""
        return self
