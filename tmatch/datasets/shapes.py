"""`shapes`: synthetic captioned images, rendered from a seed."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from tmatch.config import Count
from tmatch.data import CaptionedImages, ShapeImages
from tmatch.data.shapes import VOCABULARY
from tmatch.datasets.base import Split, WordsConfig
from tmatch.datasets.images import ImageData

TEST_SEED = 10_000
"""Images that no recipe trains on and no setting is chosen by."""
VALIDATION_SEED = 20_000
"""Images that no recipe trains on; settings are chosen by them."""


def shapes_split(count: int, split: Split) -> ShapeImages:
    """Prompts to evaluate a generator with: 'withheld' are sentences that are never trained on."""
    if split == "withheld":
        return ShapeImages(TEST_SEED, count, "withheld")
    return ShapeImages({"test": TEST_SEED, "validation": VALIDATION_SEED}[split], count)


class ShapesData(ImageData):
    """The synthetic `shapes` data set."""

    kind: Literal["shapes"] = "shapes"
    images: Count = Field(default=40_000, description="number of images")
    seed: int = Field(default=1, ge=0, lt=TEST_SEED, description="seed of the images")
    withhold: bool = Field(default=True, description="leave 36 sentences out, to evaluate generalization")
    metrics: ClassVar[tuple[str, ...]] = ("captions",)

    def training(self) -> CaptionedImages:
        return ShapeImages(self.seed, self.images, "trained" if self.withhold else "all")

    def validation(self, count: int) -> CaptionedImages:
        return ShapeImages(VALIDATION_SEED, count)

    def conditioning(self, images: CaptionedImages, text: WordsConfig | None) -> dict[str, Any]:
        return {"kind": "words", "vocabulary": VOCABULARY, **(text or WordsConfig()).model_dump()}

    def eval_prompts(self, count: int, split: Split = "test") -> CaptionedImages | None:
        return shapes_split(count, split)
