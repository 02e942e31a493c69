"""Tables of the `datasets` library: parquet files, saved data sets and the Hugging Face Hub."""

import glob
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tmatch.data.sources.source import Row, Source, Unusable, as_captions, read_file, row_digest
from tmatch.extras import needs_extra
from tmatch.reading import first_line


class TableSource(Source):
    """A table with a column of images and a column of captions."""

    captioned = True

    def __init__(self, name: str, table: Any, image: str, text: str) -> None:  # noqa: ANN401
        with needs_extra("A data set in parquet files or on the Hub", "t2i"):
            from datasets import Image, config
            from huggingface_hub.constants import HF_HUB_CACHE
        _require_columns(name, table.column_names, (image, text))
        self.name = name
        self.table = table.select_columns([image, text])
        if isinstance(table.features[image], Image):
            self.table = self.table.cast_column(image, Image(decode=False))
        self.columns = (image, text)
        own, downloads = Path(name), (Path(config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE))
        folders = (own if own.is_dir() else own.parent,) if own.exists() else downloads
        self.folders = [folder.resolve() for folder in folders]

    def __len__(self) -> int:
        return len(self.table)

    def key(self, index: int) -> str:
        return f"row {index}"

    def listed(self, rows: range) -> str:
        return row_digest(chain(self.columns, _captions(self.table.select(rows), self.columns[1])))

    def read(self, index: int) -> Row:
        try:
            row = self.table[index]
        except Exception as error:
            _raise_unless_damaged(error)
            raise Unusable(f"the row cannot be read: {first_line(error)}") from error
        image, captions = (row[column] for column in self.columns)
        if isinstance(image, dict):  # how `datasets` stores images: the bytes, or the path of a file
            path = image.get("path")
            image = image.get("bytes") or (None if path is None else read_file(path, *self.folders))
        if not isinstance(image, bytes):
            raise Unusable("no image")
        return Row(self.key(index), image, as_captions(captions))


def _captions(table: Any, column: str) -> Iterator[list[Any]]:  # noqa: ANN401
    """The captions of a table in batches, up to the first that cannot be read; `read` reports such rows."""
    try:
        for part in table.select_columns([column]).with_format("arrow").iter(10_000):
            yield part.column(0).to_pylist()
    except Exception as error:
        _raise_unless_damaged(error)


def _raise_unless_damaged(error: Exception) -> None:
    """Raise errors of the machine; a damaged table makes `datasets` raise exceptions of any type."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
        raise error


def _require_columns(name: str, found: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if column not in found:
            raise ValueError(
                f"{name} has no column '{column}'; set --image-column and --text-column to two of {', '.join(found)}."
            )


def open_parquet(name: str, files: Sequence[Path], image: str, text: str) -> TableSource:
    """Two columns of all files that have rows."""
    with needs_extra(f"The data set {name}", "t2i"):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_metadata
    full = []
    for file in files:
        try:
            table = read_metadata(file)
        except ArrowException as error:
            raise ValueError(f"{file} is not a valid parquet file ({first_line(error)}).") from error
        if table.num_rows:
            _require_columns(str(file), table.schema.to_arrow_schema().names, (image, text))
            full.append(glob.escape(str(file)))
    if not full:
        raise ValueError(f"{name} contains no images.")
    columns = list(dict.fromkeys((image, text)))
    return open_table(name, image, text, split="train", path="parquet", data_files=full, columns=columns)


def open_table(name: str, image: str, text: str, **where: Any) -> TableSource:  # noqa: ANN401
    """A data set that `datasets` saved in a folder, or loads from `where`."""
    with needs_extra(f"The data set {name}", "t2i"):
        from datasets import load_dataset, load_from_disk
    try:
        table = load_dataset(**where) if where else load_from_disk(name)
    except Exception as error:
        reason = first_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        raise ValueError(f"The data set {name} cannot be loaded ({reason}); check its name and its files.") from error
    return TableSource(name, table, image, text)
