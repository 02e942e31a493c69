"""Settings that recipes share; a key that is not there is an error."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field

from tmatch.data import CaptionedImages, FolderImages, ShapeImages
from tmatch.data.shapes import VOCABULARY
from tmatch.conditioning.words import words_of
from tmatch.config import Config

HELD_OUT_SEED = 10_000  # images that no recipe trains on, nor chooses anything by
VALIDATION_SEED = 20_000  # images that no recipe trains on, to choose by


Split = Literal["test", "validation", "withheld"]


def shapes_split(count: int, split: Split) -> ShapeImages:
    """Captions to measure a generator by: of held-out scenes, of others to choose by, of sentences not trained on."""
    if split == "withheld":
        return ShapeImages(HELD_OUT_SEED, count, "withheld")
    return ShapeImages({"test": HELD_OUT_SEED, "validation": VALIDATION_SEED}[split], count)


class ShapesData(Config):
    """Images of `shapes`, drawn from a seed."""

    images: int = Field(default=40_000, gt=0)  # how many
    seed: int = Field(default=1, ge=0, lt=HELD_OUT_SEED)  # which ones
    withhold: bool = True  # leave out 36 sentences, so that some are new to the model

    @property
    def name(self) -> str:
        """What they are called."""
        return "shapes"

    def training(self) -> CaptionedImages:
        """What is trained on."""
        return ShapeImages(self.seed, self.images, "trained" if self.withhold else "all")

    def validation(self, count: int) -> CaptionedImages:
        """What is not."""
        return ShapeImages(VALIDATION_SEED, count)

    def vocabulary(self, captions: Sequence[str]) -> tuple[str, ...]:
        """Every word of every caption."""
        return VOCABULARY

    def eval_prompts(self, count: int, split: Split = "test") -> ShapeImages | None:
        """Captions of which an exact checker can tell whether an image satisfies them."""
        return shapes_split(count, split)


class FolderData(Config):
    """Images of your own: a folder with a `metadata.jsonl`, cut to squares; one in twenty is held out."""

    folder: Path = Path("images")  # where the images and metadata.jsonl are
    size: int = Field(default=32, gt=0)  # side of the square each image is cut to, in pixels

    @property
    def name(self) -> str:
        """Where they are."""
        return str(self.folder)

    def training(self) -> CaptionedImages:
        """What is trained on."""
        return FolderImages(self.folder, self.size)

    def validation(self, count: int) -> CaptionedImages:
        """What is not; at most `count` of them."""
        return FolderImages(self.folder, self.size, held_out=True, limit=count)

    def vocabulary(self, captions: Sequence[str]) -> tuple[str, ...]:
        """Every word of the captions."""
        return tuple(sorted({word for caption in captions for word in words_of(caption)}))

    def eval_prompts(self, count: int, split: Split = "test") -> ShapeImages | None:
        """There is no checker of images that we do not know."""
        return None


Data = ShapesData | FolderData
AnyData = TypeVar("AnyData", bound=Data)
