"""A folder of pictures with a `metadata.jsonl`: a line {"file_name": ..., "text": ...} for each."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tmatch.data.captioned import CaptionedPictures
from tmatch.data.pictures import load_picture


class FolderPictures(CaptionedPictures):
    """The pictures that `metadata.jsonl` lists, cut to squares of `size` pixels; every `fold`-th one is held out."""

    def __init__(
        self, folder: Path, size: int, *, held_out: bool = False, fold: int = 20, limit: int | None = None
    ) -> None:
        rows = _rows(folder)
        if len(rows) < 2:
            raise ValueError(f"{folder} lists one picture; it takes two or more, one of them to hold out.")
        every = min(fold, len(rows))
        chosen = [row for k, row in enumerate(rows) if (k % every == every - 1) == held_out][:limit]
        self.files = [folder / row["file_name"] for row in chosen]
        self.captions = [row["text"] for row in chosen]
        self.size = size
        for file in self.files:
            if folder.resolve() not in file.resolve().parents:
                raise ValueError(f"{folder / 'metadata.jsonl'} lists {file}, which is outside of that folder.")
            if not file.is_file():
                raise ValueError(f"{folder / 'metadata.jsonl'} lists {file.name}, and {file} is not there.")

    def load(self, indices: Sequence[int]) -> Tensor:
        return torch.stack([load_picture(self.files[k], self.size) for k in indices])


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of the caption file, each checked."""
    path = folder / "metadata.jsonl"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no metadata.jsonl; give it a line "
            '{"file_name": "cat.png", "text": "a cat"} for each picture.'
        )
    rows = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 ({error}).") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error}).") from error
        missing = [key for key in ("file_name", "text") if not isinstance(row, dict) or key not in row]
        if missing:
            raise ValueError(f"{path}, line {number} has no '{missing[0]}'; every line needs file_name and text.")
        for key in ("file_name", "text"):
            if not isinstance(row[key], str) or not row[key].strip():
                raise ValueError(f"{path}, line {number}: '{key}' is not a text, or an empty one.")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} lists no pictures.")
    return rows
