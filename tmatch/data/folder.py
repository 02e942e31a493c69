"""Images in memory: of a folder, with captions, in classes or without either, or of a file of arrays."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tmatch.data.encode import CaptionedImages
from tmatch.data.sources import open_local
from tmatch.data.sources.source import Entry, Labels, LocalSource, Unusable, row_digest


class FolderImages(CaptionedImages):
    """The images of a folder or file, centre-cropped to `size` pixels; every `fold`-th image is held out.

    `part` selects some of them.
    """

    def __init__(
        self, folder: Path, size: int, *, held_out: bool = False, fold: int = 20, part: slice = slice(None),
        labels: Labels = "auto",
    ) -> None:  # fmt: skip
        self.source = open_local(folder, labels)
        rows = _checked_rows(self.source)
        if len(rows) < 2:
            raise ValueError(f"{folder} has {len(rows)} images; at least two are needed, since one is held out.")
        every = min(fold, len(rows))
        chosen = [row for k, row in enumerate(rows) if (k % every == every - 1) == held_out][part]
        self.names = [row.name for row in chosen]
        self.captions = [row.captions[0] if row.captions else row.label for row in chosen]
        self.classes = self.source.classes
        self.size = size

    def load(self, indices: Sequence[int]) -> Tensor:
        return torch.stack([self.source.load(self.names[k], self.size) for k in indices]) / 255

    def fingerprint(self) -> str:
        return row_digest([self.size, *map(self.source.stamp, self.names)])


def _checked_rows(source: LocalSource) -> list[Entry]:
    """Every row; an error counts unusable rows and shows the first."""
    rows, bad = [], []
    for index in range(len(source)):
        try:
            row = source.entry(index)
            source.stamp(row.name)
            if len(row.captions) > 1:
                raise Unusable(f"{row.name} has several captions, which only shards support")
            rows.append(row)
        except Unusable as error:
            bad.append(f"{source.key(index)}: {error}")
    if bad:
        raise ValueError(
            f"{len(bad)} of the {len(source)} rows of {source.name} cannot be used (first: {bad[0]}). Fix them, or run "
            "`tmatch prepare`, which skips and lists such rows, and train on its shards."
        )
    return rows
