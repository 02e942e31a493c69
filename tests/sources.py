"""Captioned images in all layouts, and their preparation with tiny encoders."""

import io
import json
import random
import tarfile
from pathlib import Path

from PIL import Image

from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.conditioning.transformers import PretrainedText
from tmatch.data.crop import Crop
from tmatch.data.manifest import Manifest, ShardSettings
from tmatch.data.sources import open_source
from tmatch.data.sources.source import Labels
from tmatch.prepare import Preparation

Encoders = tuple[PretrainedAutoencoder, PretrainedText]


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def image(seed: int, size: tuple[int, int] = (20, 20)) -> bytes:
    return encoded(Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1])))


CAPTIONS = ["a red circle", "two blue square", ["a square", "a blue square"], "circle of a", "a a a a a a a a a a red"]


def rows(count: int) -> list[tuple[str, bytes, object]]:
    sizes = [(20, 20), (32, 18), (18, 32)]
    return [(f"{k:03}.png", image(k, sizes[k % 3]), CAPTIONS[k % 5]) for k in range(count)]


def folder_of(folder: Path, images: list[tuple[str, bytes, object]]) -> Path:
    folder.mkdir(parents=True)
    for name, content, _ in images:
        (folder / name).write_bytes(content)
    lines = [json.dumps({"file_name": name, "text": text}) for name, _, text in images]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def pairs_of(folder: Path, count: int) -> Path:
    """Empty image files, each with a .txt."""
    folder.mkdir(parents=True)
    for k in range(count):
        (folder / f"{k:09}.png").write_bytes(b"")
        (folder / f"{k:09}.txt").write_text(f"a circle, number {k}")
    return folder


def table(file: Path, seeds: range, **more: list[str]) -> None:
    from datasets import Dataset

    file.parent.mkdir(exist_ok=True)
    columns = {"image": [image(k) for k in seeds], "text": [f"a {k}" for k in seeds], **more}
    Dataset.from_dict(columns).to_parquet(file)


def tar_of(file: Path, members: list[tuple[str, bytes]]) -> str:
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return str(file)


def preparation(
    source: Path | str,
    out: Path,
    encoders: Encoders,
    kind: str = "buckets",
    chunk: int = 4,
    labels: Labels = "auto",
    **changed: object,
) -> Preparation:
    images = open_source(str(source), labels=labels)
    autoencoder, text = encoders[0], encoders[1] if images.captioned else None
    settings = ShardSettings.model_validate(
        {
            "source": str(source), "contents": images.contents, "rows": len(images), "dtype": "float32",
            "crop": Crop(kind=kind, size=16, multiple=4), "autoencoder": autoencoder.identity(),
            "text": None if text is None else text.identity(), "classes": images.classes, "chunk": chunk,
            "batch_size": 3, "licence": "", **changed,
        }
    )  # fmt: skip
    return Preparation(images, out, settings, autoencoder, text)


def prepared(source: Path | str, out: Path, encoders: Encoders, **settings: object) -> Manifest:
    """The manifest of a complete preparation in one process."""
    manifest = preparation(source, out, encoders, **settings).run()
    assert manifest is not None
    return manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.[js]*"))}


def modified(folder: Path) -> dict[str, int]:
    """The time when each shard was written."""
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("0*.safetensors")}
