"""Labelled images through `tmatch prepare` and in memory: the same latents and labels, and how fast they are read.

    tmatch data cifar-10 --out data/cifar10
    python benchmarks/labelled_data.py --data data/cifar10/train.npz [--out docs/results/labelled_data.json]

Writes images of 32 x 32 pixels in ten class folders and in a .npz file, encodes them by a small random autoencoder with
`tmatch prepare`, and compares every sample of an epoch with the same image in memory, as `--data.kind folder` reads it.
Without --data the images are random.
Reading is compared with the loop of torchvision's `ImageFolder` and `ToTensor` (open with PIL, convert to RGB, convert
to a tensor), on one thread: all ways in turn, several times; results are medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from tmatch.app.cli import main as tmatch
from tmatch.codec import Codec, Patchify
from tmatch.codec.diffusers import load_autoencoder
from tmatch.data import FolderImages
from tmatch.data.encode import encode_dataset
from tmatch.data.packages import THINGS
from tmatch.data.shards import ShardSet
from tmatch.data.sources import open_local

SIDE, BATCH = 32, 125
Pixels = npt.NDArray[np.integer[Any]]
Samples = dict[str, tuple[int, Tensor]]
"""Label and latents of every image, by its name."""


def random_images(count: int) -> tuple[Pixels, Pixels]:
    """Smooth random images with some noise, which compress about as well as photographs; and their labels."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 6, 6, 3), np.uint8)
    noise = rng.integers(-12, 13, (count, SIDE, SIDE, 3))
    images = np.stack(
        [np.asarray(Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for one in coarse]
    )
    return (images + noise).clip(0, 255).astype(np.uint8), np.arange(count) % len(THINGS)


def write_images(folder: Path, images: Pixels, labels: Pixels) -> None:
    """Class folders of PNG files, and a .npz file."""
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / "classes" / THINGS[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "classes" / THINGS[label] / f"{k:06}.png")
    np.savez(folder / "images.npz", images=images, labels=labels)


def write_autoencoder(folder: Path) -> str:
    """A random autoencoder with a downsampling factor of two."""
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8), layers_per_block=1, latent_channels=4, norm_num_groups=4,
    ).save_pretrained(folder)  # fmt: skip
    return str(folder)


def in_shards(shards: Path, images: Path) -> Samples:
    """What training on data shards reads."""
    read, rows = ShardSet(shards), open_local(images)
    parts = map(read.read, range(len(read.files)))
    return {
        rows.entry(row).name: (part.condition(k, 0), part.latents[k])
        for part in parts
        for k, row in enumerate(part.rows.tolist())
    }


def in_memory(images: Path, autoencoder: str) -> Samples:
    """What training in memory reads: the training images and those held out."""
    codec, found = Codec(Patchify((1, 1)), load_autoencoder(autoencoder)), Samples()
    for held_out in (False, True):
        data = FolderImages(images, SIDE, held_out=held_out)
        latents = codec.patch.decode(encode_dataset(codec, data, torch.device("cpu")))
        found |= dict(zip(data.names, zip(data.captions, latents, strict=True), strict=True))
    return found


def compare(one: Samples, other: Samples) -> dict[str, Any]:
    """Whether two ways agree."""
    return {
        "same_images": one.keys() == other.keys(),
        "same_labels": all(label == other[name][0] for name, (label, _) in one.items()),
        "largest_difference": max((x - other[name][1]).abs().max().item() for name, (_, x) in one.items()),
        "standard_deviation": torch.stack([x for _, x in one.values()]).std().item(),
    }


def loop(files: list[Path]) -> Iterator[Tensor]:
    """As torchvision's `ImageFolder` with `ToTensor` reads images, in batches."""
    for first in range(0, len(files), BATCH):
        batch = []
        for file in files[first : first + BATCH]:
            with file.open("rb") as opened:
                image = Image.open(opened).convert("RGB")
            batch.append(torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255))
        yield torch.stack(batch)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Images per second of each way of reading, and the speed of ours relative to the loop, at medians."""
    classes, array = (FolderImages(folder / name, SIDE) for name in ("classes", "images.npz"))
    files = [folder / "classes" / name for name in classes.names]
    ways: dict[str, Callable[[], Iterator[Tensor]]] = {
        "loop": lambda: loop(files), "class folders": classes.batches, "npz": array.batches
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            read = sum(len(batch) for batch in way())
            assert read == len(files)
            if turn:  # the first fills the caches of the disk
                seconds[name].append(time.perf_counter() - started)
    speed = {name: round(len(files) / statistics.median(one)) for name, one in seconds.items()}
    ratios = {
        name: round(statistics.median(a / b for a, b in zip(seconds["loop"], one, strict=True)), 2)
        for name, one in seconds.items()
        if name != "loop"
    }
    return {"rounds": rounds, "images_per_second": speed, "times_as_fast_as_the_loop": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--data", type=Path, help=".npz file of images of 32 x 32 pixels with labels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = random_images(args.images)
    if args.data is not None:
        with np.load(args.data) as found:
            images = found["images"][: args.images], found["labels"][: args.images]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, *images)
        autoencoder, classes = write_autoencoder(folder / "kl"), folder / "classes"
        settings = ["--size", str(SIDE), "--dtype", "float32", "--device", "cpu"]
        tmatch(["prepare", str(classes), "--autoencoder", autoencoder, *settings, "--out", str(folder / "shards")])
        compared = compare(in_shards(folder / "shards", classes), in_memory(classes, autoencoder))
        result = {
            "data": args.data and args.data.parent.name,
            "images": len(images[0]),
            "classes": len(THINGS),
            **compared,
            **measure(folder, args.rounds),
        }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
