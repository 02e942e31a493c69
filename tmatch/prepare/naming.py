"""A source by its name: a folder, files, or a data set of the hub."""

import errno
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tmatch.prepare.source import PICTURES, FolderSource, PairSource, Source, TableSource
from tmatch.prepare.tars import TarSource
from tmatch.pretrained.identity import extra, first_line


def open_source(name: str, image: str = "image", text: str = "text", split: str = "train") -> Source:
    """A folder with a metadata.jsonl or a .txt a picture, tars, parquet files, a saved data set, or one on the hub.

    A folder of tars or parquet files stands for all of them.
    """
    path = Path(name)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    if (path / "metadata.jsonl").is_file():
        return FolderSource(path, text)
    tars, tables = ([file for file in files if file.suffix == suffix] for suffix in (".tar", ".parquet"))
    pictures = [file for file in files if file.suffix.lower() in PICTURES]
    if len(kinds := [kind[0].name for kind in (tars, tables, pictures) if kind]) > 1:
        raise ValueError(f"{name} holds {' and '.join(kinds)}: give a folder of one kind, or a file.")
    if tars:
        return TarSource(name, tars, text)
    if tables:
        return TableSource(name, _parquet(name, tables), image, text)
    if (path / "dataset_dict.json").is_file():
        parts = ", ".join(file.name for file in files if file.is_dir())
        raise ValueError(f"{name} holds several data sets: give one of its folders, {parts}.")
    if (path / "dataset_info.json").is_file():
        return TableSource(name, _table(name), image, text)
    if path.is_dir() and any(file.suffix.lower() in PICTURES for file in path.rglob("*")):
        return PairSource(path)
    if path.exists():
        below = sorted(file.parent for suffix in ("tar", "parquet") for file in path.rglob(f"*.{suffix}"))
        where = f" {below[0]} has some." if below else ""
        raise ValueError(
            f"{name} holds no pictures: no metadata.jsonl, no tars, no parquet files, no saved data set.{where}"
        )
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"There is no folder or file {name}; is it spelt right? A data set of the hub is owner/name.")
    return TableSource(name, _table(name, path=name, split=split), image, text)


def _parquet(name: str, files: Sequence[Path]) -> Any:  # noqa: ANN401
    """The rows of all files, which must be tables; their names are no patterns."""
    with extra(f"The data set {name}"):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_metadata
    for file in files:
        try:
            read_metadata(file)
        except ArrowException as error:
            raise ValueError(
                f"{file} is no parquet file, or a damaged one ({first_line(error)}): fetch it again, or take it out."
            ) from error
    return _table(name, split="train", path="parquet", data_files=[glob.escape(str(file)) for file in files])


def _table(name: str, **where: Any) -> Any:  # noqa: ANN401
    """A data set, saved in a folder or from `where` it is to be had, by the `datasets` library."""
    with extra(f"The data set {name}"):
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
