"""What a run can train on: the rows of `DATASETS`, one class for each `kind`.

A data set is a configuration whose `open()` reads the data and returns a `Dataset`: batches of states for training and
validation, the codec and the conditioner that go with them, and a fingerprint of the contents. To add one whose images
fit in memory, subclass `ImageData` with two methods that return images (`training`, `validation`) and add a row here.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tmatch.datasets.base import AssumedData, DataConfig, Dataset, Encoders, InputShapes, OpenContext, WordsConfig
from tmatch.datasets.folder import FolderData
from tmatch.datasets.images import ImageData, ImageEncoders
from tmatch.datasets.shapes import ShapesData, shapes_split
from tmatch.datasets.shards import ShardEncoders, ShardsData
from tmatch.datasets.tensors import TensorData

DATASETS: dict[str, type[DataConfig]] = {
    "shapes": ShapesData,
    "folder": FolderData,
    "shards": ShardsData,
    "tensors": TensorData,
}

if TYPE_CHECKING:
    AnyData = DataConfig
    AnyImageData = ImageData
    AnyEncoders = Encoders
else:
    AnyData = Annotated[reduce(or_, DATASETS.values()), Field(discriminator="kind")]
    _images = [data for data in DATASETS.values() if issubclass(data, ImageData)]
    AnyImageData = Annotated[reduce(or_, _images), Field(discriminator="kind")]
    AnyEncoders = Annotated[ImageEncoders | ShardEncoders, Field(discriminator="kind")]

__all__ = [
    "DATASETS", "AnyData", "AnyEncoders", "AnyImageData", "AssumedData", "Dataset", "Encoders", "FolderData",
    "ImageData", "ImageEncoders", "InputShapes", "OpenContext", "ShapesData", "ShardEncoders", "ShardsData",
    "TensorData", "WordsConfig", "shapes_split",
]  # fmt: skip
