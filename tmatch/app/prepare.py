"""`tmatch prepare`."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tmatch.codec.diffusers import PretrainedAutoencoder, load_autoencoder
from tmatch.conditioning.transformers import PretrainedText, load_text_encoder
from tmatch.config import MAX_LAYERS, MAX_SIZE, nonempty_path
from tmatch.data.crop import Crop
from tmatch.data.manifest import Manifest, ShardSettings
from tmatch.data.sources import Source, open_source
from tmatch.data.sources.source import Labels
from tmatch.hub import EncoderDtype
from tmatch.prepare import Preparation
from tmatch.ranks import rank_and_world_size
from tmatch.tensors import Device, positive_int, resolve_device

DEFAULT_TEXT = "google/flan-t5-base"


@dataclass(frozen=True)
class Encoding:
    """How images and captions are encoded."""

    autoencoder: str = "stabilityai/sdxl-vae"
    """diffusers autoencoder: a Hub name, a folder, or the common prefix of a tiny autoencoder's two files"""
    text: str | None = None
    """transformers text encoder of captions: a Hub name or a folder (default: google/flan-t5-base)"""
    max_length: int = 128
    """maximum number of tokens per caption; longer captions are truncated"""
    crop: Literal["centre", "buckets"] = "centre"
    """centre squares, or the best-fitting of several aspect ratios"""
    size: int = 256
    """side of a square in pixels; other aspect ratios have at most the same area"""
    multiple: int = 16
    """the sides of rectangles are multiples of this number of pixels"""
    ratio: float = 2.0
    """maximum aspect ratio of a rectangle"""
    smallest: int = 16
    """images with a shorter side below this number of pixels are skipped"""
    dtype: EncoderDtype = "float16"
    """dtype of latents and text embeddings on disk; codes are integers"""
    precision: EncoderDtype = "float32"
    """precision of the encoders"""
    text_precision: EncoderDtype | None = None
    """precision of the text encoder, if different"""
    chunk: int = 1024
    """rows per chunk; a chunk is encoded and written as a unit"""
    batch_size: int = 32
    """images or captions per forward pass of an encoder"""
    device: Device = "auto"
    """device of the encoders; 'auto' selects the accelerator if there is one"""

    def image_encoder(self) -> PretrainedAutoencoder:
        """The autoencoder, on its device."""
        return load_autoencoder(_absolute(self.autoencoder), self.precision).to(resolve_device(self.device))

    def text_encoder(self, source: Source) -> PretrainedText | None:
        """The text encoder, on its device; None for images without captions."""
        if not source.captioned:
            if self.text is not None or self.text_precision is not None:
                raise ValueError(f"The images are {source.conditions}: leave out --text and --text-precision.")
            return None
        name, precision = _absolute(self.text or DEFAULT_TEXT), self.text_precision or self.precision
        return load_text_encoder(name, self.max_length, precision).to(resolve_device(self.device))

    def cropping(self, factor: int) -> Crop:
        """The sizes of images, which must be multiples of the autoencoder's `factor`."""
        crop = Crop(kind=self.crop, size=self.size, multiple=self.multiple, ratio=self.ratio, smallest=self.smallest)
        if any(side % factor for pair in crop.sizes for side in pair):
            raise ValueError(f"--size and --multiple must be multiples of {factor}, for {self.autoencoder}.")
        return crop


def main(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Path,
    how: Annotated[Encoding, tyro.conf.arg(name="")] = Encoding(),
    image_column: str = "image",
    text_column: str = "text",
    split: str = "train",
    labels: Labels = "auto",
    workers: int = 4,
    licence: str = "not stated",
) -> None:
    """Encode images into data shards for training, with their captions or labels; rerun the command to resume.

    Unusable rows are skipped and listed with a reason in skipped.jsonl. Under torchrun, processes share the work.

    Args:
        source: folder of images, .npz, idx, CIFAR, tar or parquet files, saved data set, or data set on the Hub.
        out: folder for the shards.
        how: encoders and image sizes.
        image_column: column of the images in a table.
        text_column: column of the captions in a table, or their key in a metadata.jsonl or in the .json files of a tar.
        split: split of a data set on the Hub, or of files whose names start with it.
        labels: 'auto' reads the captions or labels found, 'folders' takes sub-folders as classes, 'none' reads none.
        workers: number of threads that read images.
        licence: note on the licence of the images, stored with the shards.
    """
    for name, number in (("chunk", how.chunk), ("batch-size", how.batch_size)):
        positive_int(f"--{name}", number)
    positive_int("--max-length", how.max_length, MAX_SIZE)
    positive_int("--workers", workers, MAX_LAYERS)
    if os.path.realpath(out) == os.path.realpath(source):
        raise ValueError(f"{out} is the source folder; choose another folder for the shards.")
    images = open_source(source, image_column, text_column, split, labels)
    rank, world = rank_and_world_size()
    if rank == 0:
        print(f"tmatch: encoding {len(images):,} images {images.conditions} from {source}", file=sys.stderr)
    text, autoencoder = how.text_encoder(images), how.image_encoder()
    settings = ShardSettings.model_validate(
        {
            "source": source, "contents": images.contents, "rows": len(images),
            "crop": how.cropping(autoencoder.factor), "autoencoder": autoencoder.identity(),
            "text": None if text is None else text.identity(), "classes": images.classes,
            "dtype": how.dtype, "chunk": how.chunk, "batch_size": how.batch_size, "licence": licence,
        }
    )  # fmt: skip
    manifest = Preparation(images, out, settings, autoencoder, text).run(workers, rank, world)
    if manifest is None:
        print(f"tmatch: process {rank} of {world} is done; the last one to finish completes {out}.", file=sys.stderr)
        return
    _report(manifest, out)


def _report(manifest: Manifest, out: Path) -> None:
    """Print what was written, and what was not."""
    counts = {key: getattr(manifest, key) for key in ("samples", "captions", "captions_cut", "skipped")}
    print(json.dumps({**counts, "shards": len(manifest.shards)}, indent=2))
    if manifest.skipped:
        print(f"tmatch: skipped rows: {manifest.skipped}; see {out / 'skipped.jsonl'}.", file=sys.stderr)


def _absolute(name: str) -> str:
    """The absolute path of a local encoder, which runs load from other folders; a Hub name as it is."""
    local = nonempty_path(name).is_dir() or Path(f"{name}_encoder.safetensors").is_file()
    return str(Path(name).absolute()) if local else name
