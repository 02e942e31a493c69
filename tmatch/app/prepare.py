"""`tmatch prepare`."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from tmatch.codec.diffusers import PretrainedAutoencoder, load_autoencoder
from tmatch.conditioning.transformers import PretrainedText, load_text_encoder
from tmatch.data.crop import Crop
from tmatch.data.manifest import Settings
from tmatch.data.sources import open_source
from tmatch.hub import EncoderDtype
from tmatch.prepare import Preparation
from tmatch.ranks import rank_and_world_size
from tmatch.tensors import Device, positive_int, resolve_device


@dataclass(frozen=True)
class Encoding:
    """How images and captions are encoded."""

    autoencoder: str = "stabilityai/sdxl-vae"
    """of diffusers, by name or folder, or the stem of a tiny one's two files"""
    text: str = "google/flan-t5-base"
    """a text encoder of transformers, by name or folder"""
    longest: int = 128
    """tokens read of a caption"""
    crop: Literal["centre", "buckets"] = "centre"
    """squares from the middle, or rectangles that waste less"""
    size: int = 256
    """side of a square, in pixels; rectangles have at most its area"""
    multiple: int = 16
    """what the sides of rectangles divide by"""
    ratio: float = 2.0
    """how many times a rectangle's shorter side the longer one is, at most"""
    smallest: int = 16
    """pixels of the shorter side under which an image is skipped"""
    dtype: EncoderDtype = "float16"
    """of latents and text, as written; codes are whole numbers"""
    precision: EncoderDtype = "float32"
    """of the encoders"""
    text_precision: EncoderDtype | None = None
    """of the text encoder, where it is another"""
    chunk: int = 1024
    """rows that are encoded, and written, together"""
    batch: int = 32
    """images, or captions, that go through an encoder at once"""
    device: Device = "auto"
    """where to encode; 'auto' takes the accelerator if there is one"""

    def encoders(self) -> tuple[PretrainedAutoencoder, PretrainedText]:
        """Both networks, where they are to compute."""
        where, of_text = resolve_device(self.device), self.text_precision or self.precision
        autoencoder = load_autoencoder(_from_anywhere(self.autoencoder), self.precision)
        text = load_text_encoder(_from_anywhere(self.text), self.longest, of_text)
        try:
            return autoencoder.to(where), text.to(where)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"{self.autoencoder} and {self.text} do not fit in the memory of {where}; give --text-precision "
                "bfloat16, or smaller ones."
            ) from error

    def cropping(self, factor: int) -> Crop:
        """The sizes of images, for an autoencoder that makes one of `factor` pixels."""
        crop = Crop(kind=self.crop, size=self.size, multiple=self.multiple, ratio=self.ratio, smallest=self.smallest)
        if any(side % factor for pair in crop.sizes for side in pair):
            raise ValueError(f"{self.autoencoder} makes one of {factor} pixels: --size and --multiple divide by that.")
        return crop


def prepare(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Path,
    how: Annotated[Encoding, tyro.conf.arg(name="")] = Encoding(),
    image_column: str = "image",
    text_column: str = "text",
    split: str = "train",
    workers: int = 4,
    licence: str = "not stated",
) -> None:
    """Encode images and captions into shards to train on, or go on where the same command stopped.

    What cannot be used is skipped, counted, and listed with its reason in skipped.jsonl. Under torchrun the work is
    shared between processes.

    Args:
        source: a folder (metadata.jsonl, or a .txt an image), tars, parquet files, a saved data set, or the hub's.
        out: the folder of the shards.
        how: the encoders, and what they are given.
        image_column: column of the images, in a table.
        text_column: column of the captions, in a table, a metadata.jsonl, or the .json of a tar.
        split: of a data set on the hub, or of parquet files whose names begin with it.
        workers: threads that read images.
        licence: a note on the images' licence, kept with the shards.
    """
    for name, number in (("chunk", how.chunk), ("batch", how.batch), ("longest", how.longest), ("workers", workers)):
        positive_int(f"--{name}", number)
    _require_places(source, out)
    images = open_source(source, image_column, text_column, split)
    autoencoder, text = how.encoders()
    settings = Settings.model_validate(
        {
            "source": source, "contents": images.contents, "rows": len(images),
            "crop": how.cropping(autoencoder.factor), "autoencoder": autoencoder.identity(), "text": text.identity(),
            "dtype": how.dtype, "chunk": how.chunk, "batch": how.batch, "licence": licence,
        }
    )  # fmt: skip
    rank, world = rank_and_world_size()
    work = Preparation(images, out, settings, autoencoder, text)
    with _ended_like_ctrl_c():
        manifest = work.run(workers, rank, world, progress=sys.stderr.isatty())
    if manifest is None:
        return
    counts = {key: getattr(manifest, key) for key in ("samples", "captions", "captions_cut", "skipped")}
    print(json.dumps({**counts, "shards": len(manifest.shards)}, indent=2))
    if manifest.skipped:
        rows = "1 row was" if manifest.skipped == 1 else f"{manifest.skipped} rows were"
        print(f"tmatch: {rows} skipped; {out / 'skipped.jsonl'} says why.", file=sys.stderr)


def _require_places(source: str, out: Path) -> None:
    """Refuse a source or a place for shards that could only fail later."""
    if Path(source).exists() and out.resolve() == Path(source).resolve():
        raise ValueError(f"{out} is where the images are; give another folder for the shards.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder for the shards.")
    if source.encode(errors="replace") != os.fsencode(source):
        raise ValueError(f"The source {source!r} has a name that is not UTF-8; give it another.")


def _from_anywhere(name: str) -> str:
    """A local encoder by its whole path, for runs look for it from other folders; one of the hub by its name."""
    local = Path(name).is_dir() or Path(f"{name}_encoder.safetensors").is_file()
    return str(Path(name).absolute()) if local else name


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, by which a machine is taken away, ends the work with the same sentence; in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
