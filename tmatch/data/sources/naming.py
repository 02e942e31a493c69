"""Finding the source that a name stands for: a folder, files, or a data set on the Hub."""

import os
from pathlib import Path

from tmatch.data.sources.files import METADATA, MetadataSource, PairSource, contains_images
from tmatch.data.sources.source import IMAGE_SUFFIXES, Source
from tmatch.data.sources.table import files_of_split, open_parquet, open_table
from tmatch.data.sources.tars import TarSource


def open_source(name: str, image: str = "image", text: str = "text", split: str = "train") -> Source:
    """A folder with a metadata.jsonl or .txt files, tar or parquet files, a saved data set, or one on the Hub.

    A folder of tar or parquet files stands for all of them; parquet files may be restricted to a `split`.
    """
    path = Path(name)
    if path.exists():
        return _local(name, path, image, text, split)
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"There is no file or folder {name}; data sets on the Hub are named owner/name.")
    return open_table(name, image, text, path=name, split=split)


def _local(name: str, path: Path, image: str, text: str, split: str) -> Source:
    """A source on this machine, by its contents."""
    listed = (path / METADATA).is_file()
    tars, tables, images = ([], [], []) if listed else _kinds(path)
    if len(kinds := [kind[0].name for kind in (tars, tables, images) if kind]) > 1:
        raise ValueError(
            f"{name} mixes kinds of files ({' and '.join(kinds)}); pass a folder of one kind, or one file."
        )
    if tables:
        return open_parquet(name, files_of_split(name, tables, split), image, text)
    if split != "train":
        raise ValueError(f"{name} has no splits; remove --split.")
    if listed:
        return MetadataSource(path, text)
    if tars:
        return TarSource(name, tars, text)
    if (path / "dataset_dict.json").is_file():
        parts = ", ".join(file.name for file in sorted(path.iterdir()) if file.is_dir())
        raise ValueError(f"{name} contains several data sets; pass one of its folders: {parts}.")
    if (path / "dataset_info.json").is_file():
        return open_table(name, image, text)
    if images or contains_images(path):
        return PairSource(path)
    raise ValueError(
        f"{name} contains no images: no {METADATA}, tar or parquet files, and no saved data set.{_hint(path)}"
    )


def _kinds(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The tar files, the parquet files and the first image of a folder; or the one file that `path` is."""
    found = dict[str, list[str]]()
    for file in os.scandir(path) if path.is_dir() else (path,):
        suffix = os.path.splitext(file.name)[1]
        if suffix in (".tar", ".parquet"):
            found.setdefault(suffix, []).append(file.name)
        elif suffix.lower() in IMAGE_SUFFIXES:  # there may be millions
            found["first"] = [min([file.name, *found.get("first", [])])]
    folder = path if path.is_dir() else path.parent
    tars, tables, images = (sorted(folder / each for each in found.get(k, [])) for k in (".tar", ".parquet", "first"))
    return tars, tables, images


def _hint(path: Path) -> str:
    """Where else images may be."""
    below = sorted(file.parent for suffix in ("tar", "parquet") for file in path.rglob(f"*.{suffix}"))
    return f" Did you mean {below[0]}?" if below else ""
