"""Ten images in two classes, in every layout that has labels or no captions."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
COUNT = 10
CLASSES = ("cat", "dog")
LABELS = np.array([k % 2 for k in range(COUNT)])


def pixels(channels: int = 3, side: int = SIDE, count: int = COUNT, seed: int = 0) -> np.ndarray:
    """Random images (count, side, side, channels)."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, channels), np.uint8)


def save_png(file: Path, image: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(file)


def class_folders(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        save_png(path / CLASSES[label] / f"{k}.png", image)
    return path


def npz(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    path.mkdir(parents=True)
    np.savez_compressed(path / "some.npz", images=images, labels=labels, classes=np.array(CLASSES))
    return path


def positional_npz(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    path.mkdir(parents=True)
    np.savez(path / "some.npz", images, labels[:, None])
    return path / "some.npz"


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def idx(path: Path, images: np.ndarray, labels: np.ndarray = LABELS, split: str = "train", suffix: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    pack: Callable[[bytes], bytes] = gzip.compress if suffix else bytes
    (path / f"{split}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(images[..., 0])))
    (path / f"{split}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(labels)))
    return path


def idx_gz(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    return idx(path, images, labels, suffix=".gz")


def cifar_bytes(images: np.ndarray, *labels: np.ndarray) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([np.stack(labels, 1).astype(np.uint8), planes], 1).tobytes()


def cifar_10(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    path.mkdir(parents=True)
    for k, (part, own) in enumerate(zip(np.split(images, 2), np.split(labels, 2), strict=True), 1):
        (path / f"data_batch_{k}.bin").write_bytes(cifar_bytes(part, own))
    (path / "test_batch.bin").write_bytes(cifar_bytes(255 - images, 1 - labels))
    (path / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    return path


def cifar_100(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    path.mkdir(parents=True)
    for name, one, fine in (("train", images, labels), ("test", 255 - images, 1 - labels)):
        (path / f"{name}.bin").write_bytes(cifar_bytes(one, np.full(len(one), 7), fine))
    (path / "fine_label_names.txt").write_text("\n".join(CLASSES) + "\n")
    return path


def metadata(path: Path, images: np.ndarray, labels: np.ndarray = LABELS) -> Path:
    rows = [{"file_name": f"{k}.png", "label": CLASSES[label], "seed": k} for k, label in enumerate(labels)]
    for row, image in zip(rows, images, strict=True):
        save_png(path / str(row["file_name"]), image)
    (path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


LAYOUTS: dict[str, tuple[Callable[[Path, np.ndarray], Path], int]] = {
    "folders": (class_folders, 3),
    "grey folders": (class_folders, 1),
    "metadata.jsonl": (metadata, 3),
    "npz": (npz, 3),
    "grey npz": (npz, 1),
    "positional npz": (positional_npz, 3),
    "idx": (idx, 1),
    "idx, compressed": (idx_gz, 1),
    "CIFAR-10": (cifar_10, 3),
    "CIFAR-100": (cifar_100, 3),
}
"""What writes each layout, and the channels of its images."""
