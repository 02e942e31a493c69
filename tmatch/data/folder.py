"""A folder of images with captions, in a `metadata.jsonl` or in a .txt file beside each image."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tmatch.data.encode import CaptionedImages
from tmatch.data.images import load_image
from tmatch.data.sources.files import open_folder
from tmatch.data.sources.source import Unusable, row_digest


class FolderImages(CaptionedImages):
    """The captioned images of a folder, centre-cropped to `size` pixels; every `fold`-th image is held out."""

    def __init__(
        self, folder: Path, size: int, *, held_out: bool = False, fold: int = 20, limit: int | None = None
    ) -> None:
        rows = _checked_rows(folder)
        if len(rows) < 2:
            raise ValueError(f"{folder} has {len(rows)} images; at least two are needed, since one is held out.")
        every = min(fold, len(rows))
        chosen = [row for k, row in enumerate(rows) if (k % every == every - 1) == held_out][:limit]
        self.files = [file for file, _ in chosen]
        self.captions = [caption for _, caption in chosen]
        self.size = size

    def load(self, indices: Sequence[int]) -> Tensor:
        return torch.stack([load_image(self.files[k], self.size) for k in indices])

    def fingerprint(self) -> str:
        stats = ((file, file.stat()) for file in self.files)
        return row_digest([self.size, *((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats)])


def _checked_rows(folder: Path) -> list[tuple[Path, str]]:
    """The file and the caption of every image; an error counts unusable rows and shows the first."""
    source, rows, bad = open_folder(folder), [], []
    for index in range(len(source)):
        try:
            name, captions = source.entry(index)
            file = source.path(name)
            if len(captions) > 1 or not file.is_file():
                reason = "has several captions, which only shards support" if file.is_file() else "does not exist"
                raise Unusable(f"{name} {reason}")
            rows.append((file, captions[0]))
        except Unusable as error:
            bad.append(f"{source.key(index)}: {error}")
    if bad:
        raise ValueError(
            f"{len(bad)} of the {len(source)} rows of {folder} cannot be used (first: {bad[0]}). Fix them, or run "
            "`tmatch prepare`, which skips and lists such rows, and train on its shards."
        )
    return rows
