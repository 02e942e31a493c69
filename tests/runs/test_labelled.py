"""Runs on labelled images and on images without captions."""

import json
from pathlib import Path

import pytest
import torch
from labelled import CLASSES, LABELS, class_folders, pixels
from safetensors.torch import load_file
from small_runs import NETWORKS

from tmatch.datasets import FolderData, WordsConfig
from tmatch.generation.config import SamplingConfig
from tmatch.runs import RunConfig, fit, load_model
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


def test_a_run_does_not_resume_with_other_classes(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images", pixels(side=8), LABELS)
    fit(folder_run(folder, 2), tmp_path / "run")
    (folder / "dog").rename(folder / "fox")
    with pytest.raises(ValueError, match="a run on other data"):
        fit(folder_run(folder, 4), tmp_path / "run")
