"""Images and labels in the idx files of MNIST and its relatives, plain or compressed."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tmatch.data.sources.arrays import Arrays

SUFFIXES = ("images-idx3-ubyte", "images.idx3-ubyte")
"""What names of files of images end in, before an optional .gz."""


def is_idx(file: Path) -> bool:
    """Whether a file holds images, by its name."""
    return file.name.removesuffix(".gz").endswith(SUFFIXES)


def read_idx_pair(name: str, files: Sequence[Path]) -> Arrays:
    """The images of one file, and the labels of the file next to it, if it exists."""
    if len(files) > 1:
        raise ValueError(f"{name} has several files of images ({files[0].name}, {files[1].name}); pass one of them.")
    stem = files[0].name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    beside = [file for suffix in ("", ".gz") if (file := files[0].with_name(stem + suffix)).is_file()]
    missing = "" if beside else f"there are no labels {stem} next to the images"
    return Arrays(read_idx(files[0], 3), read_idx(beside[0], 1) if beside else None, missing=missing)


def read_idx(file: Path, axes: int) -> np.ndarray:
    """The bytes of a file whose header declares unsigned bytes and this number of axes."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is truncated or damaged ({error}); copy it again.") from error
    start = 4 + 4 * axes
    if content[:4] != bytes((0, 0, 8, axes)) or len(content) < start:
        raise ValueError(f"{file} is not an idx file of bytes with {axes} axes; check its name and copy it again.")
    shape = np.frombuffer(content, ">u4", axes, 4).tolist()
    if len(content) != start + math.prod(shape):
        sizes = f"{start + math.prod(shape):,} bytes instead of {len(content):,}"
        raise ValueError(f"{file} is truncated or damaged (its header declares {sizes}); copy it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
