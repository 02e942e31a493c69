"""Splits of a data set, by the names of its files."""

import re
from collections.abc import Sequence
from pathlib import Path

SPLITS = ("train", "validation", "valid", "val", "dev", "test")
"""Words for a split, which file names start with."""
ALIASES = {"data_batch": "train", "t10k": "test"}
"""What CIFAR-10 and MNIST call their splits."""


def files_of_split(name: str, files: Sequence[Path], split: str) -> list[Path]:
    """The files whose names start with a split; all files if their names do not distinguish splits."""
    prefix = re.compile(rf"({'|'.join(map(re.escape, (split, *SPLITS, *ALIASES)))})(?![a-z])")
    splits = {file: ALIASES.get(match[1], match[1]) if (match := prefix.match(file.name)) else None for file in files}
    found = sorted({word for word in splits.values() if word is not None})
    if split == "train" and len(found) < 2:
        return list(files)
    if not found:
        raise ValueError(f"{name} has no splits; remove --split.")
    if split not in found:
        raise ValueError(f"{name} has no split '{split}'; set --split to one of {', '.join(found)}.")
    if odd := [file.name for file in files if splits[file] is None]:
        raise ValueError(f"{name} contains {odd[0]}, which belongs to no split; move it elsewhere.")
    return [file for file in files if splits[file] == split]
