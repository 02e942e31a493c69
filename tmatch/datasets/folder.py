"""Your own images: captioned, in classes, or without either."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tmatch.config import Dimension, NonemptyPath
from tmatch.data import CaptionedImages, FolderImages
from tmatch.data.sources.source import Labels
from tmatch.datasets.base import Split, halves
from tmatch.datasets.images import ImageData


class FolderData(ImageData):
    """A folder of images, or a .npz, idx or CIFAR file; one image in twenty is held out for validation."""

    kind: Literal["folder"] = "folder"
    folder: NonemptyPath | None = Field(default=Path("images"), description="folder or file of the images")
    size: Dimension = Field(default=32, description="height and width to crop and resize each image to, in pixels")

    labels: Labels = Field(
        default="auto",
        description="'auto': the captions or labels found; 'folders': sub-folders are classes; 'none': neither",
    )

    @property
    def name(self) -> str:
        return str(self.folder)

    def training(self) -> CaptionedImages:
        return FolderImages(self._known(), self.size, labels=self.labels)

    def validation(self, count: int) -> CaptionedImages:
        return self._held_out(slice(count))

    def eval_prompts(self, count: int, split: Split = "test") -> CaptionedImages | None:
        return None if split == "withheld" else self._held_out(halves(count)[split])

    def at(self, folder: Path | None) -> "FolderData":
        return self if folder is None else self.model_copy(update={"folder": folder})

    def anonymous(self) -> "FolderData":
        return self.model_copy(update={"folder": None})

    def _held_out(self, part: slice) -> FolderImages:
        return FolderImages(self._known(), self.size, held_out=True, part=part, labels=self.labels)

    def _known(self) -> Path:
        if self.folder is None:
            raise ValueError(
                "The folder of the images is not stored with the model: pass it (--data; to train, --data.folder)."
            )
        return self.folder
