"""Finding the source that a name stands for: a folder, files, or a data set on the Hub."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tmatch.config import nonempty_path
from tmatch.data.sources.arrays import Arrays, ArraySource
from tmatch.data.sources.cifar import layout_of, read_cifar
from tmatch.data.sources.files import METADATA, contains_images
from tmatch.data.sources.folders import open_folder
from tmatch.data.sources.idx import is_idx, read_idx_pair
from tmatch.data.sources.npz import read_npz
from tmatch.data.sources.source import IMAGE_SUFFIXES, Labels, LocalSource, Source
from tmatch.data.sources.splits import files_of_split
from tmatch.data.sources.table import open_parquet, open_table
from tmatch.data.sources.tars import TarSource

ARRAYS: dict[str, Callable[[str, Sequence[Path]], Arrays]] = {
    ".npz": read_npz,
    "idx": read_idx_pair,
    "cifar": read_cifar,
}
"""Readers of the files of one split, by kind of file."""
Files = Mapping[str, Sequence[Path]]


def open_source(
    name: str, image: str = "image", text: str = "text", split: str = "train", labels: Labels = "auto"
) -> Source:
    """A folder of images, arrays of images, tar or parquet files, a saved data set, or one on the Hub.

    A folder of tar or parquet files stands for all of them. Parquet files and arrays may be restricted to a `split`;
    `labels` says where the labels of a folder or of arrays come from.
    """
    path = nonempty_path(name)
    if not path.exists():
        if path.is_absolute() or name.startswith(".") or name.count("/") != 1:
            raise ValueError(f"There is no file or folder {name}; data sets on the Hub are named owner/name.")
        _require_captions(name, labels)
        return open_table(name, image, text, path=name, split=split)
    kinds = _kinds(path)
    if local := _local(path, kinds, text, split, labels):
        return local
    _require_captions(name, labels)
    if tables := kinds.get(".parquet"):
        return open_parquet(name, files_of_split(name, tables, split), image, text)
    _require_no_split(name, split)
    if tars := kinds.get(".tar"):
        return TarSource(name, tars, text)
    if (path / "dataset_info.json").is_file():
        return open_table(name, image, text)
    below = sorted(file.parent for kind in ("tar", "parquet", "arrow") for file in path.rglob(f"*.{kind}"))
    hint = f" Did you mean {below[0]}?" if below else ""
    raise ValueError(
        f"{name} contains no images: no {METADATA}, image, .npz, idx, CIFAR, tar or parquet files, and no saved data "
        f"set.{hint}"
    )


def open_local(path: Path, labels: Labels = "auto") -> LocalSource:
    """A folder of images, or the training split of arrays of images."""
    if not path.exists():
        raise ValueError(
            f"The folder {path} does not exist; pass one that contains images, or write one with `tmatch data`."
        )
    if (source := _local(path, _kinds(path), labels=labels)) is None:
        raise ValueError(f"{path} contains no images, .npz, idx or CIFAR files; run `tmatch prepare` on other formats.")
    return source


def _local(
    path: Path, kinds: Files, text: str = "text", split: str = "train", labels: Labels = "auto"
) -> LocalSource | None:
    """A folder of images or arrays; None if it holds neither."""
    if found := kinds.keys() & ARRAYS.keys():
        kind = found.pop()
        files = files_of_split(str(path), kinds[kind], split)
        return ArraySource(str(path), files, ARRAYS[kind](str(path), files), labels)
    if "image" in kinds or (not kinds and ((path / METADATA).is_file() or contains_images(path))):
        _require_no_split(str(path), split)
        return open_folder(path, text, labels)
    return None


def _require_captions(name: str, labels: Labels) -> None:
    if labels != "auto":
        raise ValueError(f"{name} is read with its captions: leave out --labels.")


def _require_no_split(name: str, split: str) -> None:
    if split != "train":
        raise ValueError(f"{name} has no splits; remove --split.")


def _kinds(path: Path) -> Files:
    """The files of each kind in a folder, only the first of the images; or the one file that `path` is."""
    found: dict[str, list[Path]] = {}
    if (path / METADATA).is_file():
        return found
    for file in path.iterdir() if path.is_dir() else (path,):
        if (kind := _kind(file)) is not None:
            others = found.setdefault(kind, [])
            found[kind] = [min(file, *others)] if kind == "image" and others else [*others, file]  # may be millions
    if len(found) > 1:
        names = " and ".join(min(files).name for _, files in sorted(found.items()))
        raise ValueError(f"{path} mixes kinds of files ({names}); pass a folder of one kind or one file.")
    return {kind: sorted(files) for kind, files in found.items()}


def _kind(file: Path) -> str | None:
    """The kind of a file, by its name; None if it is not read."""
    if file.suffix.lower() in IMAGE_SUFFIXES:
        return "image"
    named = file.suffix if file.suffix in (".tar", ".parquet", ".npz") else "idx" if is_idx(file) else None
    kind = "cifar" if layout_of(file) is not None else named
    return kind if kind is not None and file.is_file() else None  # a FIFO would block
