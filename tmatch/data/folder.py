"""A folder of images with a `metadata.jsonl`: a line {"file_name": ..., "text": ...} for each."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tmatch.data.captioned import CaptionedImages
from tmatch.data.images import load_image


class FolderImages(CaptionedImages):
    """The images that `metadata.jsonl` lists, cut to squares of `size` pixels; every `fold`-th one is held out."""

    def __init__(
        self, folder: Path, size: int, *, held_out: bool = False, fold: int = 20, limit: int | None = None
    ) -> None:
        rows = _rows(folder)
        if len(rows) < 2:
            raise ValueError(f"{folder} lists one image; it takes two or more, one of them to hold out.")
        every = min(fold, len(rows))
        chosen = [row for k, row in enumerate(rows) if (k % every == every - 1) == held_out][:limit]
        self.files = [folder / row["file_name"] for row in chosen]
        self.captions = [row["text"] for row in chosen]
        self.size = size

    def load(self, indices: Sequence[int]) -> Tensor:
        return torch.stack([load_image(self.files[k], self.size) for k in indices])


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of the caption file, each checked; bad ones are counted, and the first is shown."""
    path, inside, rows, bad = folder / "metadata.jsonl", folder.resolve(), [], []
    lines = [(number, line) for number, line in enumerate(_lines(path), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} lists no images.")
    for number, line in lines:
        try:
            rows.append(_row(line, inside))
        except ValueError as error:
            bad.append(f"line {number} {error}")
    if bad:
        raise ValueError(
            f"{path} cannot be used for {len(bad)} of its {len(lines)} lines: {bad[0]}{', for one' * (len(bad) > 1)}; "
            "mend that, or have `tmatch prepare` skip and list such images, and train on its shards."
        )
    return rows


def _lines(path: Path) -> list[str]:
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent}; give one that holds images and a metadata.jsonl.")
    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no metadata.jsonl; give it a line "
            '{"file_name": "cat.png", "text": "a cat"} for each image.'
        )
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut captions at U+2028 and U+0085
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 ({error}).") from error


def _row(line: str, folder: Path) -> dict[str, Any]:
    """What a line says of an image in the folder; refused where it cannot be used."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error
    for key in ("file_name", "text"):
        if not isinstance(row, dict) or key not in row:
            raise ValueError(f"has no '{key}', and every line needs file_name and text")
        if not isinstance(row[key], str) or not row[key].strip():
            raise ValueError(f"has a '{key}' that is not a text, or an empty one")
    file = folder / row["file_name"]
    if folder not in file.resolve().parents:
        raise ValueError(f"lists {file}, which is outside of that folder")
    if not file.is_file():
        raise ValueError(f"lists {row['file_name']}, and {file} is not there")
    return row
