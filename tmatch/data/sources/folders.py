"""What a folder of images is: captioned images, classes in sub-folders, or images alone."""

import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from tmatch.data.progress import progress_bar
from tmatch.data.sources.files import (
    LINKED,
    METADATA,
    FileSource,
    ImageFiles,
    MetadataSource,
    PairSource,
    list_files,
    split_row,
)
from tmatch.data.sources.source import Labels, in_order, require_classes
from tmatch.data.sources.splits import SPLITS


def open_folder(folder: Path, column: str = "text", labels: Labels = "auto") -> FileSource:
    """The images of a folder; `labels` says whether its captions, its sub-folders or neither are read."""
    return FOLDERS[labels](folder, column)


def _recognized(folder: Path, column: str) -> FileSource:
    """By a `metadata.jsonl`, or else .txt files beside images, or else images that all lie in sub-folders."""
    if (folder / METADATA).is_file():
        return MetadataSource(folder, column)
    rows = _listed(folder)
    if any(images and captions for _, images, captions in map(split_row, rows)):
        return PairSource(folder, rows)
    names = _images(folder, rows)
    above = {name.rpartition("/")[0] for name in names if not name.endswith(LINKED)}
    classes = len(above) > 1 and not any(parent == "" or "/" in parent for parent in above)
    return _in_classes(folder, names) if classes else ImageFiles(folder, names)


def _by_folder(folder: Path, column: str) -> FileSource:
    return _in_classes(folder, _images(folder, _listed(folder)))


def _without_labels(folder: Path, column: str) -> FileSource:
    listed = (folder / METADATA).is_file()
    return MetadataSource(folder, None) if listed else ImageFiles(folder, _images(folder, _listed(folder)))


FOLDERS: dict[Labels, Callable[[Path, str], FileSource]] = {
    "auto": _recognized,
    "folders": _by_folder,
    "none": _without_labels,
}


def _in_classes(folder: Path, names: Sequence[str]) -> ImageFiles:
    """Images whose classes are the sub-folders."""
    owners = [name.partition("/")[0] for name in names if "/" in name.rstrip(LINKED)]
    if outside := [name for name in names if "/" not in name]:
        raise ValueError(f"{folder} has images outside of the folders of classes, such as {outside[0]}; move them.")
    with os.scandir(folder) as found:
        classes = in_order(one.name for one in found if one.is_dir(follow_symlinks=False) and one.name[0] != ".")
    _require_no_splits(folder, set(classes))
    index = {name: k for k, name in enumerate(classes)}
    return ImageFiles(folder, names, require_classes(str(folder), classes, [index[owner] for owner in owners]))


def _require_no_splits(folder: Path, tops: set[str]) -> None:
    if tops and tops <= set(SPLITS):
        names = sorted(tops)
        raise ValueError(f"{folder} holds the splits {', '.join(names)}; pass one of them, as {folder / names[0]}.")


def _listed(folder: Path) -> list[str]:
    rows = sorted(progress_bar(list_files(str(folder)), f"Listing {folder}"))
    if all("/" in row for row in rows):
        _require_no_splits(folder, {row.partition("/")[0] for row in rows})
    return rows


def _images(folder: Path, rows: Sequence[str]) -> list[str]:
    """The names of all images, and of links to folders."""
    split = map(split_row, rows)
    names = list(chain.from_iterable([name] if name.endswith(LINKED) else images for name, images, _ in split))
    if not names:
        raise ValueError(f"{folder} contains no images.")
    return names
