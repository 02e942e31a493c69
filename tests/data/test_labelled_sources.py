"""Readers of labelled images and of images without captions."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled import (
    CLASSES,
    COUNT,
    LABELS,
    LAYOUTS,
    cifar_10,
    cifar_bytes,
    class_folders,
    idx,
    idx_bytes,
    pixels,
    save_png,
)

from tmatch.data import FolderImages
from tmatch.data.sources import Source, open_local, open_source
from tmatch.data.sources.source import Unusable, in_order

Contents = set[tuple[int | None, bytes]]


def contents(source: Source) -> Contents:
    """The label and the RGB pixels of every row."""
    rows = [source.read(k) for k in range(len(source))]
    return {(row.label, row.decode().tobytes()) for row in rows}


def expected(images: np.ndarray, labels: np.ndarray | None = LABELS) -> Contents:
    rgb = np.broadcast_to(images, (*images.shape[:-1], 3))
    known = [None] * len(images) if labels is None else labels.tolist()
    return {(label, image.tobytes()) for label, image in zip(known, rgb, strict=True)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_pixels_labels_and_classes_are_those_written(name: str, tmp_path: Path) -> None:
    write, channels = LAYOUTS[name]
    images = pixels(channels)
    path = write(tmp_path / "data", images)
    source = open_source(str(path))
    assert source.classes == (("0", "1") if "idx" in name or "positional" in name else CLASSES)
    assert (len(source), contents(source)) == (COUNT, expected(images))
    source = open_source(str(path), labels="none")
    assert (source.classes, contents(source)) == (None, expected(images, None))


@pytest.mark.parametrize("name", LAYOUTS)
def test_images_in_memory_have_the_same_pixels_and_labels(name: str, tmp_path: Path) -> None:
    write, channels = LAYOUTS[name]
    images = pixels(channels)
    path, found = write(tmp_path / "data", images), set()
    for held_out in (False, True):
        data = FolderImages(path, 32, held_out=held_out, fold=5)
        assert len(data) == (2 if held_out else 8)
        assert data.classes == open_source(str(path)).classes
        batch = (255 * data.load(range(len(data)))).round().byte().movedim(1, -1)
        found |= {(label, image.numpy().tobytes()) for label, image in zip(data.captions, batch, strict=True)}
    assert found == expected(images)


@pytest.mark.parametrize("name", ["CIFAR-10", "CIFAR-100"])
def test_splits_are_told_apart(name: str, tmp_path: Path) -> None:
    images = pixels()
    path = str(LAYOUTS[name][0](tmp_path / "data", images))
    assert contents(open_source(path, split="test")) == expected(255 - images, 1 - LABELS)
    with pytest.raises(ValueError, match="no split 'validation'"):
        open_source(path, split="validation")


def test_splits_of_idx_and_npz_are_told_apart(tmp_path: Path) -> None:
    images, other = pixels(1), pixels(1, seed=1)
    idx(tmp_path / "idx", images)
    idx(tmp_path / "idx", other, split="t10k", suffix=".gz")
    (tmp_path / "npz").mkdir()
    for name, some in (("train", images), ("test", other)):
        np.savez(tmp_path / "npz" / f"{name}.npz", x=some[..., 0], y=LABELS)
    for folder in ("idx", "npz"):
        assert contents(open_source(str(tmp_path / folder))) == expected(images)
        assert contents(open_local(tmp_path / folder)) == expected(images)
        assert contents(open_source(str(tmp_path / folder), split="test")) == expected(other)
    assert contents(open_source(str(tmp_path / "npz" / "test.npz"))) == expected(other)


def test_rows_of_labelled_images_are_in_a_fixed_random_order(tmp_path: Path) -> None:
    """A data shard, which is a range of rows, must not hold a single class."""
    images, labels = pixels(1, 2, 100), np.arange(100) // 50
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    for path in (tmp_path / "some.npz", class_folders(tmp_path / "data", images, labels)):
        orders = [[source.read(k).label for k in range(20)] for source in (open_source(str(path)) for _ in range(2))]
        assert orders[0] == orders[1]
        assert 3 < sum(orders[0]) < 17
        assert 0.2 < np.mean(FolderImages(path, 2, held_out=True, fold=2, part=slice(20)).captions) < 0.8


def test_the_order_of_classes() -> None:
    assert in_order(["2", "10", "-1", "02"]) == ["-1", "02", "2", "10"]
    assert in_order(["b", "10", "2"]) == ["10", "2", "b"]


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for k in range(11):
        save_png(tmp_path / str(k) / "one.png", pixels(side=2)[0])
    source = open_local(tmp_path)
    assert source.classes == tuple(map(str, range(11)))
    assert all(entry.name == f"{entry.label}/one.png" for entry in map(source.entry, range(11)))


def test_what_a_folder_without_captions_is(tmp_path: Path) -> None:
    """Classes if all images lie in direct sub-folders, of which there are several; one option decides otherwise."""
    images = pixels()
    folder = class_folders(tmp_path / "data", images)

    def classes(labels: Any = "auto") -> tuple[str, ...] | None:  # noqa: ANN401
        return open_source(str(folder), labels=labels).classes

    assert (classes(), classes("folders"), classes("none")) == (CLASSES, CLASSES, None)
    save_png(folder / "cat" / "more" / "deep.png", images[0])
    assert (classes(), classes("folders")) == (None, CLASSES)
    (folder / "dog" / "1.txt").write_text("a dog")
    source = open_source(str(folder))
    assert (source.captioned, source.classes, classes("folders")) == (True, None, CLASSES)
    assert not open_source(str(folder), labels="none").captioned
    (folder / "dog" / "1.txt").unlink()
    save_png(folder / "root.png", images[0])
    assert classes() is None
    with pytest.raises(ValueError, match="outside of the folders of classes"):
        classes("folders")


def test_metadata_that_lists_files_only(tmp_path: Path) -> None:
    images = pixels()
    for k, image in enumerate(images):
        save_png(tmp_path / f"{k}.png", image)
    lines = [json.dumps({"file_name": f"{k}.png"}) for k in range(COUNT)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    assert contents(open_source(str(tmp_path))) == expected(images, None)
    assert FolderImages(tmp_path, 32).captions == [None] * 9
    lines[3] = json.dumps({"file_name": "3.png", "caption": "a cat"})
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(Unusable, match="--text-column"):
        open_source(str(tmp_path)).read(0)
    assert contents(open_source(str(tmp_path), labels="none")) == expected(images, None)


def test_mixed_grey_and_colour_files_are_read_as_rgb(tmp_path: Path) -> None:
    images, grey = pixels(), pixels(1, seed=1)
    class_folders(tmp_path, images)
    save_png(tmp_path / "cat" / "grey.png", grey[0])
    assert contents(open_source(str(tmp_path))) == expected(images) | expected(grey[:1], np.array([0]))


def _npz(path: Path, **arrays: Any) -> Path:  # noqa: ANN401
    np.savez(path / "bad.npz", **arrays)
    return path


def _file(path: Path, name: str, content: bytes) -> Path:
    (path / name).write_bytes(content)
    return path


IDX = idx_bytes(pixels(1)[..., 0])
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty class": (lambda p: (class_folders(p, pixels()) / "cow").mkdir() or p, "no image of the class 'cow'"),
    "object arrays": (lambda p: _npz(p, images=np.array([{}, None])), "not a valid .npz"),
    "text as .npz": (lambda p: _file(p, "a.npz", b"hello"), "not a valid .npz"),
    "no images": (lambda p: _npz(p, pictures=pixels()), "no array named"),
    "real images": (lambda p: _npz(p, images=pixels() / 255), "uint8"),
    "channels first": (lambda p: _npz(p, images=pixels().transpose(0, 3, 1, 2)), "uint8"),
    "counts differ": (lambda p: _npz(p, images=pixels(), labels=LABELS[1:]), "10 images, but 9 labels"),
    "real labels": (lambda p: _npz(p, images=pixels(), labels=LABELS / 1), "must be integers"),
    "negative label": (lambda p: _npz(p, images=pixels(), labels=LABELS - 1), "label -1"),
    "a label that is missing": (lambda p: _npz(p, images=pixels(), labels=2 * LABELS), "no image of the class '1'"),
    "label out of range": (
        lambda p: _npz(p, images=pixels(), labels=LABELS, classes=np.array(["cat"])), "1 classes, but an image",
    ),
    "one class": (lambda p: _npz(p, images=pixels(), labels=0 * LABELS), "one class only"),
    "truncated idx": (lambda p: _file(p, "train-images-idx3-ubyte", IDX[:-1]), "truncated"),
    "truncated header": (lambda p: _file(p, "train-images-idx3-ubyte", IDX[:9]), "not an idx file"),
    "truncated gz": (
        lambda p: _file(p, "train-images-idx3-ubyte.gz", gzip.compress(IDX)[:-9]), "truncated",
    ),
    "idx without labels": (lambda p: _file(p, "train-images-idx3-ubyte", IDX), "--labels none"),
    "idx counts": (
        lambda p: _file(idx(p, pixels(1)), "train-labels-idx1-ubyte", idx_bytes(LABELS[1:])), "9 labels",
    ),
    "truncated CIFAR": (lambda p: _file(p, "data_batch_1.bin", cifar_bytes(pixels(), LABELS)[:-1]), "truncated"),
    "empty CIFAR": (lambda p: _file(p, "data_batch_1.bin", b""), "truncated"),
    "both CIFAR": (
        lambda p: _file(cifar_10(p / "a", pixels()), "train.bin", cifar_bytes(pixels(), LABELS, LABELS)), "mixes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("way", [lambda path: open_source(str(path)), open_local], ids=["prepare", "folder"])
def test_bad_input_ends_in_one_sentence(way: Callable[[Path], Source], name: str, tmp_path: Path) -> None:
    write, reason = BAD[name]
    with pytest.raises(ValueError, match=rf"^[^\n]*{reason}[^\n]*$"):
        way(write(tmp_path))


def test_one_folder_of_a_class_and_folders_of_splits_are_explained(tmp_path: Path) -> None:
    class_folders(tmp_path / "one", pixels(), 0 * LABELS)
    assert open_source(str(tmp_path / "one")).classes is None
    with pytest.raises(ValueError, match="--labels none"):
        open_source(str(tmp_path / "one"), labels="folders")
    for split in ("train", "test"):
        save_png(tmp_path / "splits" / split / "a.png", pixels()[0])
        class_folders(tmp_path / "imagenet" / split, pixels())
    with pytest.raises(ValueError, match="holds the splits test, train; pass one"):
        open_source(str(tmp_path / "imagenet"))
    with pytest.raises(ValueError, match="holds the splits test, train; pass one"):
        open_source(str(tmp_path / "imagenet"), labels="none")
    with pytest.raises(ValueError, match="holds the splits test, train"):
        open_source(str(tmp_path / "splits"))


def test_labels_of_folders_are_no_option_for_arrays_and_tars(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", images=pixels(), labels=LABELS)
    with pytest.raises(ValueError, match="--labels"):
        open_source(str(tmp_path / "some.npz"), labels="folders")
    (tmp_path / "some.tar").write_bytes(bytes(10240))
    with pytest.raises(ValueError, match="--labels"):
        open_source(str(tmp_path / "some.tar"), labels="none")


def test_a_changed_array_changes_the_fingerprint(tmp_path: Path) -> None:
    def fingerprint(seed: int) -> str:
        np.savez(tmp_path / "some.npz", images=pixels(seed=seed), labels=LABELS)
        return FolderImages(tmp_path / "some.npz", 32).fingerprint()

    assert len({fingerprint(0), fingerprint(1)}) == 2
    assert torch.equal(*(FolderImages(tmp_path / "some.npz", 32).load([1]) for _ in range(2)))
