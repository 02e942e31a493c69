"""The binary files of CIFAR-10 and CIFAR-100."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmatch.data.sources.arrays import Arrays

SIDE = 32


class Layout(NamedTuple):
    """A record is some bytes of labels, of which the last is used, and the pixels of an image, channel by channel."""

    files: str
    labels: int
    names: str
    classes: int


LAYOUTS = (
    Layout(r"data_batch_\d+\.bin|test_batch\.bin", 1, "batches.meta.txt", 10),
    Layout(r"(train|test)\.bin", 2, "fine_label_names.txt", 100),
)


def layout_of(file: Path) -> Layout | None:
    """The layout of a file, by its name."""
    return next((layout for layout in LAYOUTS if re.fullmatch(layout.files, file.name)), None)


def read_cifar(name: str, files: Sequence[Path]) -> Arrays:
    """The records of all files, and the names of classes from the file next to them, if there is one."""
    layout = layout_of(files[0])
    if layout is None or any(layout_of(file) != layout for file in files):
        raise ValueError(f"{name} mixes files of CIFAR-10 and of CIFAR-100; pass a folder of one of them.")
    records = np.concatenate([_records(file, layout) for file in files])
    images = records[:, layout.labels :].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    listed = files[0].with_name(layout.names)
    names = listed.read_text("utf-8").split("\n") if listed.is_file() else map(str, range(layout.classes))
    return Arrays(images, records[:, layout.labels - 1], [word.strip() for word in names if word.strip()])


def _records(file: Path, layout: Layout) -> np.ndarray:
    content, size = np.fromfile(file, np.uint8), layout.labels + 3 * SIDE**2
    if len(content) == 0 or len(content) % size:
        raise ValueError(
            f"{file} is truncated: its {len(content):,} bytes are not a multiple of {size:,}; copy it again."
        )
    return content.reshape(-1, size)
