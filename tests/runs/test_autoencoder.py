from pathlib import Path

import pytest
import torch
from PIL import Image

from tmatch.codec.saved import load_autoencoder_file, shipped_autoencoder
from tmatch.data.shapes import Shapes
from tmatch.datasets import FolderData, ShapesData
from tmatch.datasets.shapes import TEST_SEED
from tmatch.recipes import RECIPES
from tmatch.runs import AutoencoderRun, fit
from tmatch.runs.autoencoder import evaluate_autoencoder
from tmatch.train import TrainConfig

SMALL = AutoencoderRun(
    train=TrainConfig(steps=6, batch_size=8, checkpoint_every=2), data=ShapesData(images=40), width=8, held_out=6
)


def test_a_run_trains_standardizes_saves_and_evaluates(tmp_path: Path) -> None:
    result = fit(SMALL, tmp_path)
    assert set(result) == {"captions_satisfied", "squared_error"}
    loaded = load_autoencoder_file(tmp_path / "autoencoder.safetensors", SMALL)
    assert not torch.equal(loaded.scale, torch.ones(4))
    assert evaluate_autoencoder(SMALL, loaded) == result
    before = (tmp_path / "autoencoder.safetensors").read_bytes()
    assert fit(SMALL, tmp_path) == result
    assert (tmp_path / "autoencoder.safetensors").read_bytes() == before, "a second call changes nothing"


@pytest.mark.parametrize("name", ["shapes", "shapes-codes"])
def test_the_shipped_weights_reconstruct_new_images(name: str) -> None:
    autoencoder, run = shipped_autoencoder(name), RECIPES[f"{name}-autoencoder"]()
    measured = evaluate_autoencoder(run.model_copy(update={"held_out": 300}), autoencoder)
    assert measured["captions_satisfied"] >= 0.99
    z = autoencoder.encode(Shapes(TEST_SEED).scenes(range(200)).render())
    if name == "shapes":
        assert z.shape[1:] == (4, 8, 8)
        torch.testing.assert_close(z.std((0, 2, 3)), torch.ones(4), atol=0.1, rtol=0)
    else:
        assert z.shape[1:] == (1, 4, 4)
        assert 0 <= z.min() <= z.max() < autoencoder.codebook_size
        assert len(z.unique()) > 300, "codes are used"


def test_a_run_with_other_settings_is_left_alone(tmp_path: Path) -> None:
    fit(SMALL, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.*")}
    with pytest.raises(ValueError, match=r"data\.images.*kl"):
        fit(SMALL.model_copy(update={"data": ShapesData(images=30), "kl": 0.5}), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.*")} == before


def test_a_run_does_not_resume_on_other_images(tmp_path: Path) -> None:
    for colour in ("red", "blue"):
        (folder := tmp_path / colour).mkdir()
        Image.new("RGB", (16, 16), colour).save(folder / "0.png")
        (folder / "metadata.jsonl").write_text('{"file_name": "0.png", "text": "a square"}\n' * 8)
    (images := tmp_path / "images").symlink_to(tmp_path / "red")
    data = FolderData(folder=images, size=16)
    run = AutoencoderRun(train=SMALL.train, data=data, width=8, held_out=1)
    assert fit(run, tmp_path / "run") == fit(run, tmp_path / "run")
    images.unlink()
    images.symlink_to(tmp_path / "blue")
    with pytest.raises(ValueError, match="a run on other data"):
        fit(run, tmp_path / "run")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_round_trips_through_json(name: str) -> None:
    recipe = RECIPES[name]()
    assert type(recipe).model_validate_json(recipe.model_dump_json()) == recipe
