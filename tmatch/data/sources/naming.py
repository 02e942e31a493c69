"""Finding the source that a name stands for: a folder, files, or a data set on the Hub."""

from pathlib import Path

from tmatch.config import nonempty_path
from tmatch.data.sources.files import METADATA, contains_images, open_folder
from tmatch.data.sources.source import IMAGE_SUFFIXES, Source
from tmatch.data.sources.table import files_of_split, open_parquet, open_table
from tmatch.data.sources.tars import TarSource


def open_source(name: str, image: str = "image", text: str = "text", split: str = "train") -> Source:
    """A folder with a metadata.jsonl or .txt files, tar or parquet files, a saved data set, or one on the Hub.

    A folder of tar or parquet files stands for all of them; parquet files may be restricted to a `split`.
    """
    path = nonempty_path(name)
    if path.exists():
        return _local(name, path, image, text, split)
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"There is no file or folder {name}; data sets on the Hub are named owner/name.")
    return open_table(name, image, text, path=name, split=split)


def _local(name: str, path: Path, image: str, text: str, split: str) -> Source:
    tars, tables, images = _kinds(path)
    if len(kinds := [kind[0].name for kind in (tars, tables, images) if kind]) > 1:
        raise ValueError(f"{name} mixes kinds of files ({' and '.join(kinds)}); pass a folder of one kind or one file.")
    if tables:
        return open_parquet(name, files_of_split(name, tables, split), image, text)
    if split != "train":
        raise ValueError(f"{name} has no splits; remove --split.")
    if tars:
        return TarSource(name, tars, text)
    if (path / "dataset_info.json").is_file():
        return open_table(name, image, text)
    if (path / METADATA).is_file() or contains_images(path):
        return open_folder(path, text)
    below = sorted(file.parent for kind in ("tar", "parquet", "arrow") for file in path.rglob(f"*.{kind}"))
    hint = f" Did you mean {below[0]}?" if below else ""
    raise ValueError(f"{name} contains no images: no {METADATA}, tar or parquet files, and no saved data set.{hint}")


def _kinds(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The tar files, the parquet files and the first image of a folder; or the one file that `path` is."""
    found: dict[str, list[Path]] = {".tar": [], ".parquet": [], "image": []}
    if (path / METADATA).is_file():
        return [], [], []
    for file in path.iterdir() if path.is_dir() else (path,):
        if file.suffix in (".tar", ".parquet") and file.is_file():  # a FIFO would block
            found[file.suffix].append(file)
        elif file.suffix.lower() in IMAGE_SUFFIXES:
            found["image"] = [min(file, *found["image"])] if found["image"] else [file]  # there may be millions
    return sorted(found[".tar"]), sorted(found[".parquet"]), found["image"]
