"""Runs of a generator, small; and the models they leave behind."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tmatch.recipes import MODELS, GeneratorRecipe, load_model
from tmatch.runs.autoencoder import AutoencoderRecipe, load_autoencoder
from tmatch.runs.base import BackboneSettings, HeadSettings, SamplingSettings
from tmatch.runs.export import export
from tmatch.runs.generator import TextSettings
from tmatch.runs.load import open_model
from tmatch.runs.settings import FolderData, ShapesData, shapes_split
from tmatch.train import TrainConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))
from test_images import folder_of

NETWORKS = {
    "backbone": BackboneSettings(width=16, depth=1, heads=2),
    "head": HeadSettings(width=16, depth=1),
    "text": TextSettings(width=16, heads=2),
    "sampling": SamplingSettings(steps=2, head_steps=2),
}
TRAIN = TrainConfig(steps=6, batch_size=8, checkpoint_every=2, validate_every=3, preview_every=3)


def small(variant: str = "dtm-mean") -> GeneratorRecipe[ShapesData]:
    return GeneratorRecipe[ShapesData](
        train=TRAIN, variant=variant, data=ShapesData(images=40), validation_images=4, held_out=6, **NETWORKS
    )


@pytest.mark.parametrize("variant", ["fm", "dtm", "dtm-32", "dtm-mean", "ddpm"])
def test_a_run_leaves_a_model_that_can_be_used(variant: str, tmp_path: Path) -> None:
    result = small(variant).run(tmp_path)
    assert result is not None
    assert result["prompts"] == 6
    assert json.loads((tmp_path / "result.json").read_text()) == result
    pipeline, recipe = load_model(str(tmp_path))
    assert recipe.model_dump() == small(variant).model_dump()
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, pipeline.get_parameter(name))
    assert pipeline.generate(["a red circle"], [3], steps=2).images.shape == (1, 3, 32, 32)


def test_a_model_can_be_used_before_its_run_is_over(tmp_path: Path) -> None:
    small().run(tmp_path)
    newest = load_file(tmp_path / "step-00000006" / "ema.safetensors")
    (tmp_path / "model.safetensors").unlink()
    pipeline, _ = load_model(str(tmp_path))
    assert all(torch.equal(tensor, pipeline.get_parameter(name)) for name, tensor in newest.items())


def test_an_exported_model_is_the_same_in_half_the_bytes(tmp_path: Path) -> None:
    small().run(tmp_path / "run")
    export(open_model(str(tmp_path / "run")), tmp_path / "small")
    whole, half = (load_model(str(tmp_path / name))[0] for name in ("run", "small"))
    for a, b in zip(whole.model.parameters(), half.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
    size = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("run", "small")]
    assert size[1] < 0.6 * size[0]


def test_your_own_images_with_your_own_autoencoder(tmp_path: Path) -> None:
    data = FolderData(folder=folder_of(tmp_path / "images", 45), size=16)
    autoencoder = AutoencoderRecipe[FolderData](train=TRAIN, data=data, width=8)
    assert set(autoencoder.run(tmp_path / "autoencoder") or {}) == {"squared_error"}
    recipe = GeneratorRecipe[FolderData](
        train=TRAIN, variant="dtm", data=data, autoencoder=str(tmp_path / "autoencoder"), **NETWORKS
    )
    assert recipe.run(tmp_path / "run") is not None
    (tmp_path / "autoencoder" / "autoencoder.safetensors").unlink()  # the run keeps its own
    pipeline, _ = load_model(str(tmp_path / "run"))
    assert pipeline.shape == (2, 2, 16)
    assert pipeline.encoder.vocabulary == ("0", "1", "2", "number", "image")
    assert pipeline.generate(["image number 2"], [0]).images.shape == (1, 3, 16, 16)
    with pytest.raises(ValueError, match="has no autoencoder"):
        recipe.run(tmp_path / "other")
    before = (tmp_path / "run" / "autoencoder" / "autoencoder.safetensors").read_bytes()
    other = str(tmp_path / "another")
    for then, now in ((recipe.autoencoder, other), (recipe.autoencoder, "none"), ("none", other)):
        if then == "none":
            recipe.model_copy(update={"autoencoder": then}).run(tmp_path / then)
        with pytest.raises(ValueError, match=f"a run with another autoencoder, '{then}' and not '{now}'; give that"):
            recipe.model_copy(update={"autoencoder": now}).run(tmp_path / ("none" if then == "none" else "run"))
    assert (tmp_path / "run" / "autoencoder" / "autoencoder.safetensors").read_bytes() == before
    export(open_model(str(tmp_path / "run")), tmp_path / "exported")
    assert load_model(str(tmp_path / "exported"))[0].shape == (2, 2, 16)


def test_a_longer_run_replaces_what_it_left(tmp_path: Path) -> None:
    small().run(tmp_path)
    longer = small().model_copy(update={"train": TRAIN.model_copy(update={"steps": 8, "checkpoint_every": 7})})
    assert longer.run(tmp_path) is not None
    newest = load_file(tmp_path / "step-00000008" / "ema.safetensors")
    assert all(torch.equal(x, newest[name]) for name, x in load_file(tmp_path / "model.safetensors").items())


def test_loading_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    small().run(tmp_path)
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    load_model(str(tmp_path))
    assert torch.equal(torch.get_rng_state(), expected)


def test_damaged_and_foreign_models_are_refused(tmp_path: Path) -> None:
    small().run(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        load_model(str(tmp_path))
    path.write_bytes(whole)
    about = json.loads((tmp_path / "model.json").read_text())
    about["recipe"]["backbone"]["depth"] = 2
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="another architecture"):
        load_model(str(tmp_path))
    for foreign in ("{}", "[]", "3", '{"shape": 5}', "not json", json.dumps({**about, "shape": [1]})):
        (tmp_path / "model.json").write_text(foreign)
        with pytest.raises(ValueError, match="does not describe a model"):
            load_model(str(tmp_path))
    with pytest.raises(ValueError, match="There is no model 'shapes-dtm-maen'"):
        load_model("shapes-dtm-maen")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is not a trained model"):
        load_model(str(tmp_path / "empty"))


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"no variant 'dmt' \(did you mean 'dtm'"):
        small("dmt")


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_models_draw_what_they_are_told(name: str) -> None:
    from tmatch.eval.captions import captions_satisfied

    pipeline, recipe = load_model(name)
    prompts = recipe.data.eval_prompts(100)
    assert prompts is not None
    measured = captions_satisfied(pipeline, prompts, **recipe.sampling.arguments())
    assert measured.share > 0.7


def test_withheld_sentences_are_new_to_the_model_and_made_of_parts_it_knows() -> None:
    trained = ShapesData(images=4000).training().captions
    withheld = shapes_split(300, "withheld").captions
    assert len(set(withheld)) == 36
    assert not set(withheld) & set(trained)
    for part in {half for sentence in withheld for half in sentence.split(" and ")}:
        assert any(part in sentence for sentence in trained), part
    assert len(set(ShapesData(images=4000, withhold=False).training().captions) & set(withheld)) > 30


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"variant": "artm-3"}, "takes the 3 steps it was trained with.*asked for 16.*--sampling.steps None"),
        ({"variant": "ar-discrete", "sampling": SamplingSettings(steps=None)}, "set patch to"),
        ({"variant": "fm", "backbone": BackboneSettings(kind="llama")}, "set backbone.kind to dit"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_any_work(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GeneratorRecipe[ShapesData](**{"train": TRAIN, "data": ShapesData(images=40), **settings})


def test_a_row_of_codes_trains_and_draws(tmp_path: Path) -> None:
    """A discrete autoencoder of one's own, a generator on its codes, images; and each refuses the other's kind."""
    data = ShapesData(images=40)
    codes = AutoencoderRecipe[ShapesData](train=TRAIN, data=data, channels=4, width=8, levels=(3, 3), held_out=4)
    assert codes.run(tmp_path / "codes") is not None
    own = {"sampling": SamplingSettings(steps=None, iterations=3, order="confidence"), "patch": (1, 1)}
    settings = {**NETWORKS, **own, "train": TRAIN, "data": data, "validation_images": 4, "held_out": 4}
    for name in ("ar-discrete", "mar-discrete"):
        recipe = GeneratorRecipe[ShapesData](**{**settings, "variant": name, "autoencoder": str(tmp_path / "codes")})
        assert recipe.run(tmp_path / name) is not None
        pipeline, loaded = load_model(str(tmp_path / name))
        assert pipeline.generate(["a circle"], [0], **loaded.sampling.arguments()).images.shape == (1, 3, 32, 32)
    with pytest.raises(ValueError, match="draws codes: give a discrete autoencoder"):
        GeneratorRecipe[ShapesData](**{**settings, "variant": "ar-discrete"}).run(tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists(), "what is refused leaves nothing behind"
    other = codes.model_copy(update={"levels": (9,)})
    with pytest.raises(ValueError, match=r"another codebook, of levels \[3, 3\], than its recipe, \[9\]"):
        load_autoencoder(tmp_path / "codes" / "autoencoder.safetensors", other)


@pytest.mark.parametrize("levels", [(9,), (2, 2)], ids=["as many codes", "fewer"])
def test_a_model_refuses_codes_of_another_codebook(levels: tuple[int, ...], tmp_path: Path) -> None:
    data, short = ShapesData(images=20), TRAIN.model_copy(update={"steps": 2})
    for name, own in (("codes", (3, 3)), ("others", levels)):
        codes = AutoencoderRecipe[ShapesData](train=short, data=data, channels=4, width=8, levels=own, held_out=4)
        codes.run(tmp_path / name)
    own = {"autoencoder": str(tmp_path / "codes"), "patch": (1, 1), "sampling": SamplingSettings(steps=None)}
    recipe = GeneratorRecipe[ShapesData](
        **{**NETWORKS, **own, "train": short, "variant": "ar-discrete", "data": data, "held_out": 4}
    )
    recipe.run(tmp_path / "run")
    load_model(str(tmp_path / "run"))
    for file in ("recipe.json", "autoencoder.safetensors"):
        (tmp_path / "run" / "autoencoder" / file).write_bytes((tmp_path / "others" / file).read_bytes())
    with pytest.raises(ValueError, match="trained with another autoencoder, of another codebook"):
        load_model(str(tmp_path / "run"))
    with pytest.raises(ValueError, match="another"):
        recipe.model_copy(update={"train": TRAIN}).run(tmp_path / "run")
