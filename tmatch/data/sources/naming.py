"""A source by its name: a folder, files, or a data set of the hub."""

import errno
import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tmatch.data.sources.pairs import PairSource, holds_images, linked_folders
from tmatch.data.sources.source import PICTURES, FolderSource, Source, TableSource, require_columns
from tmatch.data.sources.tars import TarSource
from tmatch.extras import needs_extra
from tmatch.hub import first_line

SPLITS = ("train", "validation", "valid", "val", "dev", "test")
"""What names of files begin with."""


def open_source(name: str, image: str = "image", text: str = "text", split: str = "train") -> Source:
    """A folder with a metadata.jsonl or a .txt an image, tars, parquet files, a saved data set, or one on the hub.

    A folder of tars or parquet files stands for all of them, or for those of the `split` that their names begin with.
    """
    path = Path(name)
    if path.exists():
        return _local(name, path, image, text, split)
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"There is no folder or file {name}; is it spelt right? A data set of the hub is owner/name.")
    return TableSource(name, _table(name, path=name, split=split), image, text)


def _local(name: str, path: Path, image: str, text: str, split: str) -> Source:
    """What lies on this machine, by what is in it."""
    listed = (path / "metadata.jsonl").is_file()
    tars, tables, images = ([], [], []) if listed else _kinds(path)
    if len(kinds := [kind[0].name for kind in (tars, tables, images) if kind]) > 1:
        raise ValueError(f"{name} holds {' and '.join(kinds)}: give a folder of one kind, or a file.")
    if tables:
        table = _parquet(name, _of_split(name, tables, split), (image, text))
        return TableSource(name, table, image, text)
    if split != "train":
        raise ValueError(f"{name} has no splits to choose one by --split: leave that out.")
    if listed:
        return FolderSource(path, text)
    if tars:
        return TarSource(name, tars, text)
    if (path / "dataset_dict.json").is_file():
        parts = ", ".join(file.name for file in sorted(path.iterdir()) if file.is_dir())
        raise ValueError(f"{name} holds several data sets: give one of its folders, {parts}.")
    if (path / "dataset_info.json").is_file():
        return TableSource(name, _table(name), image, text)
    if images or holds_images(path):
        return PairSource(path)
    raise ValueError(
        f"{name} holds no images: no metadata.jsonl, no tars, no parquet files, no saved data set.{_elsewhere(path)}"
    )


def _kinds(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The tars and the parquet files of a folder, and the first of its images; or the one file that it is."""
    found = dict[str, list[str]]()
    for file in os.scandir(path) if path.is_dir() else (path,):
        suffix = os.path.splitext(file.name)[1]
        if suffix in (".tar", ".parquet"):
            found.setdefault(suffix, []).append(file.name)
        elif suffix.lower() in PICTURES:  # perhaps millions
            found["first"] = [min([file.name, *found.get("first", [])])]
    folder = path if path.is_dir() else path.parent
    tars, tables, images = (sorted(folder / each for each in found.get(k, [])) for k in (".tar", ".parquet", "first"))
    return tars, tables, images


def _elsewhere(path: Path) -> str:
    """Where there may be some, if anywhere."""
    if below := sorted(file.parent for suffix in ("tar", "parquet") for file in path.rglob(f"*.{suffix}")):
        return f" {below[0]} has some."
    if linked := linked_folders(path):
        return f" {path / linked[0]} is a link to a folder, which is not followed: give that folder."
    return ""


def _of_split(name: str, files: Sequence[Path], split: str) -> list[Path]:
    """The files of a split where their names begin with several, and else all of them."""
    begins = re.compile(rf"({'|'.join(map(re.escape, (split, *SPLITS)))})(?![a-z])")
    of = {file: found[1] if (found := begins.match(file.name)) else None for file in files}
    there = sorted({word for word in of.values() if word is not None})
    if split == "train" and len(there) < 2:
        return list(files)
    if not there:
        raise ValueError(f"{name} has no splits to choose one by --split: leave that out.")
    if split not in there:
        raise ValueError(
            f"{name} has no parquet file whose name begins with {split}, but such that begin with "
            f"{' and '.join(there)}: name one of these by --split."
        )
    if odd := [file.name for file in files if of[file] is None]:
        raise ValueError(f"{name} holds files of splits, and {odd[0]}, which is of none: take that out.")
    return [file for file in files if of[file] == split]


def _parquet(name: str, files: Sequence[Path], columns: tuple[str, str]) -> Any:  # noqa: ANN401
    """These columns of all files that have rows, which must be tables; their names are no patterns."""
    with needs_extra(f"The data set {name}", "t2i"):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_metadata
    full = []
    for file in files:
        try:
            table = read_metadata(file)
        except ArrowException as error:
            raise ValueError(
                f"{file} is no parquet file, or a damaged one ({first_line(error)}): fetch it again, or take it out."
            ) from error
        if table.num_rows:
            require_columns(str(file), table.schema.to_arrow_schema().names, columns)
            full.append(glob.escape(str(file)))
    if not full:
        raise ValueError(f"{name} lists no images.")
    return _table(name, split="train", path="parquet", data_files=full, columns=list(dict.fromkeys(columns)))


def _table(name: str, **where: Any) -> Any:  # noqa: ANN401
    """A data set, saved in a folder or from `where` it is to be had, by the `datasets` library."""
    with needs_extra(f"The data set {name}", "t2i"):
        from datasets import load_dataset, load_from_disk
    try:
        return load_dataset(**where) if where else load_from_disk(name)
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:  # where the library keeps its copy
            raise cause from error
        reason = first_line(cause if isinstance(cause, Exception) else error)
        raise ValueError(
            f"The data set {name} cannot be read ({reason}); mend it, or is the name spelt right?"
        ) from error
