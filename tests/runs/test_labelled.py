"""Runs on labelled images and on images without captions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from labelled import CLASSES, LABELS, class_folders, pixels
from safetensors.torch import load_file
from small_runs import NETWORKS
from tiny import save_kl_autoencoder

from tmatch.app.cli import main
from tmatch.datasets import FolderData, ShardsData, WordsConfig
from tmatch.generation.config import SamplingConfig
from tmatch.runs import InitConfig, RunConfig, fit, load_model
from tmatch.train import TrainConfig

TWO = SamplingConfig(steps=2)
TRAIN = {"steps": 6, "batch_size": 4, "device": "cpu", "validate_every": 3, "checkpoint_every": 2}


def folder_run(folder: Path, steps: int = 6, labels: str = "auto") -> RunConfig:
    return RunConfig(
        train=TrainConfig.model_validate({**TRAIN, "steps": steps, "preview_every": 6}),
        variant="dtm-mean",
        data=FolderData.model_validate({"folder": folder, "size": 8, "labels": labels}),
        autoencoder="none",
        validation_images=4,
        **{**NETWORKS, "text": WordsConfig(width=24, heads=2)},
    )


def test_a_run_in_memory_learns_a_label_table(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images", pixels(side=8))
    for name, stops in (("whole", (6,)), ("parts", (2, 6))):
        for steps in stops:
            fit(folder_run(folder, steps), tmp_path / name)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole["encoder.table.weight"].shape == (3, 24)
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())
    pipeline = load_model(str(tmp_path / "whole")).pipeline
    named, indexed = (pipeline.generate([label], [0], TWO).images for label in ("dog", 1))
    assert torch.equal(named, indexed)
    assert json.loads((tmp_path / "whole" / "model.json").read_text())["encoders"]["conditioning"]["classes"] == [
        *CLASSES
    ]


def test_a_run_in_memory_without_labels(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images", pixels(side=8))
    fit(folder_run(folder, labels="none"), tmp_path / "run")
    assert not any("encoder" in name for name in load_file(tmp_path / "run" / "model.safetensors"))
    pipeline = load_model(str(tmp_path / "run")).pipeline
    assert pipeline.encoder.width is None
    assert torch.equal(*(pipeline.generate([given], [0], TWO).images for given in (None, "dog")))


def test_evaluation_of_an_export_needs_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test and validation images are different ones."""
    images = np.arange(96, dtype=np.uint8)[:, None, None, None] + pixels(side=8, count=1)
    folder = class_folders(tmp_path / "images", images, np.arange(96) % 2)
    fit(folder_run(folder), tmp_path / "run")
    main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")])
    command = ["evaluate", "--model", str(tmp_path / "exported"), "--steps", "1", "--prompts", "9", "--json"]
    with pytest.raises(SystemExit):
        main(command)
    assert "is not stored with the model: pass it (--data;" in capsys.readouterr().err
    found = []
    for split in ("test", "validation"):
        main([*command, "--data", str(folder), "--split", split])
        found.append(json.loads(capsys.readouterr().out)["energy_distance"])
    assert found[0] != found[1]
    (folder / "dog").rename(folder / "ant")
    with pytest.raises(SystemExit):
        main([*command, "--data", str(folder)])
    assert "other classes than the model, whose first is 'cat'" in capsys.readouterr().err
    (folder / "ant").rename(folder / "dog")
    splits = [FolderData(folder=folder, size=8).eval_prompts(9, split) for split in ("test", "validation")]
    assert not set(splits[0].names) & set(splits[1].names)


def test_a_run_does_not_resume_with_other_classes(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images", pixels(side=8), LABELS)
    fit(folder_run(folder, 2), tmp_path / "run")
    (folder / "dog").rename(folder / "fox")
    with pytest.raises(ValueError, match="a run on other data"):
        fit(folder_run(folder, 4), tmp_path / "run")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the same images with labels, and without."""
    folder = tmp_path_factory.mktemp("data")
    source, kl = class_folders(folder / "images", pixels(side=16)), save_kl_autoencoder(folder / "kl")
    command = ["prepare", str(source), "--autoencoder", str(kl), "--size", "16", "--chunk", "4"]
    for labels in ("auto", "none"):
        main([*command, "--labels", labels, "--out", str(folder / labels)])
    return folder


def shards_run(folder: Path, steps: int = 6, **data: object) -> RunConfig:
    return RunConfig(
        train=TrainConfig.model_validate({**TRAIN, "steps": steps, "preview_every": 6}),
        variant="dtm-mean",
        data=ShardsData.model_validate({"folders": folder, "validation": folder, "label_width": 24, **data}),
        **{**NETWORKS, "text": None},
    )


def test_a_run_on_labelled_shards_resumes_to_the_bit(shards: Path, tmp_path: Path) -> None:
    for name, stops in (("whole", (6,)), ("parts", (1, 3, 6))):
        for steps in stops:
            fit(shards_run(shards / "auto", steps, workers=steps % 2), tmp_path / name)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole["encoder.table.weight"].shape == (3, 24)
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())
    first, last = (load_file(next((tmp_path / "parts").glob(f"step-0000000{step}/*.safetensors"))) for step in (4, 6))
    moved = {key for key in first if "encoder.table" in key and not torch.equal(first[key], last[key])}
    assert len(moved) >= 2, "the weights and their average are trained"


def test_classes_are_sampled_by_name_and_survive_an_export(shards: Path, tmp_path: Path) -> None:
    fit(shards_run(shards / "auto"), tmp_path / "run")
    main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported"), "--dtype", "float32"])
    expected = None
    for name in ("run", "exported"):
        pipeline = load_model(str(tmp_path / name)).pipeline
        assert pipeline.encoder.classes == CLASSES
        cat, dog, first = (pipeline.generate([label], [0], TWO).images for label in ("cat", "dog", 0))
        assert torch.equal(cat, first)
        assert not torch.equal(cat, dog)
        assert expected is None or torch.equal(cat, expected)
        expected = cat


def test_a_label_does_not_change_the_unconditional_branch(shards: Path, tmp_path: Path) -> None:
    fit(shards_run(shards / "auto"), tmp_path / "run")
    pipeline = load_model(str(tmp_path / "run")).pipeline
    none = SamplingConfig(steps=2, guidance=0.0)
    images = [pipeline.generate([label], [0], none).images for label in (*CLASSES, None)]
    assert all(torch.equal(images[0], other) for other in images)
    assert torch.equal(images[0], pipeline.generate([None], [0], SamplingConfig(steps=2, guidance=1.0)).images)
    guided = pipeline.generate(["cat"], [0], SamplingConfig(steps=2, guidance=1.0)).images
    assert not torch.equal(images[0], guided)


def test_unlabelled_shards_train_an_unconditional_model(shards: Path, tmp_path: Path) -> None:
    fit(shards_run(shards / "none"), tmp_path / "run")
    assert not any("encoder" in name for name in load_file(tmp_path / "run" / "model.safetensors"))
    pipeline = load_model(str(tmp_path / "run")).pipeline
    assert pipeline.encoder.width is None
    assert pipeline.generate([None], [0], TWO).images.shape == (1, 3, 16, 16)


def test_validation_needs_the_same_classes(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without captions or labels"):
        fit(shards_run(shards / "auto", validation=shards / "none"), tmp_path / "run")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_the_label_table(parallel: str, shards: Path, tmp_path: Path) -> None:
    small = ["--backbone.width", "16", "--backbone.depth", "1", "--backbone.heads", "2", "--train.batch-size", "4"]
    run = ["train", "shards-fm", "--data.folders", str(shards / "auto"), *small]
    run += ["--train.preview-every", "0", "--train.steps", "3"]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tmatch"),
            *(*run, "--train.parallel", parallel, "--out", str(tmp_path / "two")),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    main([*run, "--out", str(tmp_path / "one")])
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one["encoder.table.weight"].shape == (3, 128)
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("freeze", [False, True])
def test_classes_keep_their_vectors_in_another_list_of_classes(freeze: bool, shards: Path, tmp_path: Path) -> None:
    """`dog` becomes the first of two classes, and a new class is the second."""
    fit(shards_run(shards / "auto"), tmp_path / "old")
    (tmp_path / "images").mkdir()
    for name, own in (("cat", "eel"), ("dog", "dog")):
        shutil.copytree(shards / "images" / name, tmp_path / "images" / own)
    command = ["prepare", str(tmp_path / "images"), "--autoencoder", str(shards / "kl"), "--size", "16"]
    main([*command, "--out", str(tmp_path / "shards")])
    init = InitConfig(model=str(tmp_path / "old"), freeze=freeze)
    train = TrainConfig.model_validate({**TRAIN, "steps": 1, "warmup": 100, "learning_rate": 1e-9, "ema_decay": 0.0})
    run = shards_run(tmp_path / "shards").model_copy(update={"init": init, "train": train})
    fit(run, tmp_path / "new")
    old, new = (load_file(tmp_path / name / "model.safetensors")["encoder.table.weight"] for name in ("old", "new"))
    torch.testing.assert_close(new[[0, 2]], old[[1, 2]])
    assert not torch.allclose(new[1], old[0])
