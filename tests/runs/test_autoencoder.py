from pathlib import Path

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from tmatch.data.shapes import Shapes
from tmatch.recipes import RECIPES, AutoencoderRecipe, committed_autoencoder, shapes_autoencoder
from tmatch.runs.autoencoder import load_autoencoder
from tmatch.runs.settings import HELD_OUT_SEED, FolderData, ShapesData
from tmatch.train import TrainConfig

SMALL = AutoencoderRecipe[ShapesData](
    train=TrainConfig(steps=6, batch_size=8, checkpoint_every=2), data=ShapesData(images=40), width=8, held_out=6
)


def test_a_run_trains_standardises_exports_and_measures(tmp_path: Path) -> None:
    result = SMALL.run(tmp_path)
    assert result is not None
    assert set(result) == {"captions_satisfied", "squared_error"}
    loaded = load_autoencoder(tmp_path / "autoencoder.safetensors", SMALL)
    assert not torch.equal(loaded.scale, torch.ones(4))
    assert SMALL.evaluate(loaded) == result


def test_running_again_changes_nothing(tmp_path: Path) -> None:
    first = SMALL.run(tmp_path)
    before = (tmp_path / "autoencoder.safetensors").read_bytes()
    assert SMALL.run(tmp_path) == first
    assert (tmp_path / "autoencoder.safetensors").read_bytes() == before


def test_the_committed_weights_rebuild_images_never_trained_on() -> None:
    autoencoder = committed_autoencoder()
    assert shapes_autoencoder().model_copy(update={"held_out": 300}).evaluate(autoencoder)["captions_satisfied"] >= 0.99
    z = autoencoder.encode(Shapes(HELD_OUT_SEED).scenes(range(200)).render())
    assert z.shape[1:] == (4, 8, 8)
    torch.testing.assert_close(z.std((0, 2, 3)), torch.ones(4), atol=0.1, rtol=0)


def test_the_committed_codes_rebuild_images_never_trained_on() -> None:
    autoencoder, recipe = committed_autoencoder("shapes-codes"), RECIPES["shapes-codes-autoencoder"]()
    assert recipe.model_copy(update={"held_out": 300}).evaluate(autoencoder)["captions_satisfied"] >= 0.99
    codes = autoencoder.encode(Shapes(HELD_OUT_SEED).scenes(range(200)).render())
    assert codes.shape[1:] == (1, 4, 4)
    assert 0 <= codes.min() <= codes.max() < autoencoder.codes
    assert len(codes.unique()) > 300, "they are put to use"


def test_another_recipe_does_not_touch_a_run(tmp_path: Path) -> None:
    SMALL.run(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.*")}
    with pytest.raises(ValueError, match=r"a run with another data\.images and kl; choose a new folder"):
        SMALL.model_copy(update={"data": ShapesData(images=30), "kl": 0.5}).run(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.*")} == before


def test_other_images_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    for colour in ("red", "blue"):
        (folder := tmp_path / colour).mkdir()
        Image.new("RGB", (16, 16), colour).save(folder / "0.png")
        (folder / "metadata.jsonl").write_text('{"file_name": "0.png", "text": "a square"}\n' * 8)
    (images := tmp_path / "images").symlink_to(tmp_path / "red")
    data = FolderData(folder=images, size=16)
    recipe = AutoencoderRecipe[FolderData](train=SMALL.train, data=data, width=8, held_out=1)
    assert recipe.run(tmp_path / "run") == recipe.run(tmp_path / "run")
    images.unlink()
    images.symlink_to(tmp_path / "blue")
    with pytest.raises(ValueError, match="a run on other data; choose a new folder or the old"):
        recipe.run(tmp_path / "run")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_whole_configuration(name: str) -> None:
    recipe = RECIPES[name]()
    assert type(recipe).model_validate_json(recipe.model_dump_json()) == recipe


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="widht"):
        AutoencoderRecipe[ShapesData].model_validate({**shapes_autoencoder().model_dump(), "widht": 8})
