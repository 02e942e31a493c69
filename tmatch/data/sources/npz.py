"""Images and labels in a .npz file of NumPy, which is never unpickled."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tmatch.data.sources.arrays import Arrays
from tmatch.files import atomic_write
from tmatch.reading import first_line

IMAGES, LABELS, CLASSES = ("images", "x", "arr_0"), ("labels", "y", "arr_1"), ("classes",)
"""Names of the arrays; the first that the file has is read."""

DAMAGED = (ValueError, LookupError, AttributeError, TypeError, EOFError, NotImplementedError, BadZipFile, zlib.error)
"""What NumPy raises for damaged files and for arrays of Python objects."""


def read_npz(name: str, files: Sequence[Path]) -> Arrays:
    """The arrays of one file: images, and optionally labels and the names of classes."""
    if len(files) > 1:
        raise ValueError(f"{name} has several .npz files ({files[0].name}, {files[1].name}); pass one of them.")
    try:
        with np.load(files[0], allow_pickle=False) as found:
            arrays = [_first(found, names) for names in (IMAGES, LABELS, CLASSES)]
    except DAMAGED as error:
        raise ValueError(f"{files[0]} is not a valid .npz file of plain arrays ({first_line(error)}).") from error
    images, labels, classes = arrays
    if images is None:
        raise ValueError(f"{files[0]} has no array named {', '.join(IMAGES[:-1])} or {IMAGES[-1]}: rename its images.")
    return Arrays(images, labels, None if classes is None else [str(one) for one in classes.reshape(-1)])


def _first(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    return next((arrays[name] for name in names if name in arrays), None)


def write_npz(file: Path, arrays: Arrays) -> None:
    """Write arrays as `read_npz` reads them, atomically."""
    parts: dict[str, Any] = {"images": arrays.images, "labels": arrays.labels, "classes": arrays.classes}
    with atomic_write(file) as draft, draft.open("wb") as opened:
        np.savez(opened, **{name: part for name, part in parts.items() if part is not None})
