"""Small runs of a generator, and the models they write."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from small_runs import TRAIN, changed, small_run

from tmatch.codec.saved import load_autoencoder_file
from tmatch.datasets import FolderData, ShapesData, shapes_split
from tmatch.eval.evaluate import evaluate
from tmatch.generation.config import SamplingConfig
from tmatch.runs import MODELS, AutoencoderRun, BackboneConfig, RunConfig, fit, load_model
from tmatch.runs.export import export, model_card
from tmatch.times import Continuous, LogitNormal, Uniform
from tmatch.train import TrainConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))
from test_images import folder_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "dtm-mean"
    fit(small_run(), out)
    return out


@pytest.mark.parametrize("variant", ["fm", "dtm", "ddpm"])
def test_a_run_writes_a_model_that_loads(variant: str, tmp_path: Path) -> None:
    result = fit(small_run(variant), tmp_path)
    assert result["prompts"] == 6
    assert json.loads((tmp_path / "result.json").read_text()) == result
    model = load_model(str(tmp_path))
    assert model.config.run == small_run(variant)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, model.pipeline.get_parameter(name))
    assert model.pipeline.generate(["a red circle"], [3], model.config.run.sampling).images.shape == (1, 3, 32, 32)


def test_an_unfinished_run_loads_from_its_newest_checkpoint_and_says_so(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(small_run(), tmp_path)
    newest = load_file(tmp_path / "step-00000006" / "ema.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "step-00000006").rename(tmp_path / "gone")
    loaded = load_model(str(tmp_path))
    assert (loaded.step, "is not finished: loaded step 4 of 6" in capsys.readouterr().err) == (4, True)
    assert "for 4 of 6 steps" in model_card(loaded, "x")
    (tmp_path / "gone").rename(tmp_path / "step-00000006")
    pipeline = load_model(str(tmp_path)).pipeline
    assert all(torch.equal(tensor, pipeline.get_parameter(name)) for name, tensor in newest.items())


def test_a_damaged_checkpoint_is_not_sampled_from(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / "model.safetensors").unlink()
    file = out / "step-00000006" / "ema.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"ema.safetensors is damaged .*step-00000004"):
        load_model(str(out))
    shutil.rmtree(file.parent)
    load_model(str(out))


@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_a_diverged_run_leaves_no_weights_that_are_not_finite(rate: float, tmp_path: Path) -> None:
    run = changed(small_run(), learning_rate=rate, warmup=0, checkpoint_every=1, validate_every=0, preview_every=0)
    with pytest.raises(ValueError, match=r"diverged .*lower train.learning_rate"):
        fit(run, tmp_path)
    if rate == 1e30:  # the weights of step 1 are finite, though not their loss
        assert all(x.isfinite().all() for x in load_model(str(tmp_path)).pipeline.state_dict().values())
    else:
        with pytest.raises(ValueError, match="has not written a checkpoint"):
            load_model(str(tmp_path))


@pytest.mark.parametrize("rate", [1e15, 1e30, 3e38])
def test_a_diverged_autoencoder_is_not_written(rate: float, tmp_path: Path) -> None:
    train = TrainConfig(steps=1, batch_size=8, learning_rate=rate, warmup=0, validate_every=0)
    with pytest.raises(ValueError, match=r"diverged .*lower train.learning_rate"):
        fit(AutoencoderRun(train=train, data=ShapesData(images=20), width=8, held_out=4), tmp_path)
    assert not (tmp_path / "autoencoder.safetensors").exists()


def test_an_exported_model_is_the_same_in_half_the_bytes(finished: Path, tmp_path: Path) -> None:
    export(load_model(str(finished)), tmp_path / "small")
    whole, half = (load_model(str(folder)).pipeline for folder in (finished, tmp_path / "small"))
    for a, b in zip(whole.model.parameters(), half.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
    size = [(folder / "model.safetensors").stat().st_size for folder in (finished, tmp_path / "small")]
    assert size[1] < 0.6 * size[0]


def test_own_images_with_an_own_autoencoder(tmp_path: Path) -> None:
    data = FolderData(folder=folder_of(tmp_path / "images", 45), size=16)
    fitted = fit(AutoencoderRun(train=TRAIN, data=data, width=8), tmp_path / "autoencoder")
    assert set(fitted) == {"squared_error"}
    run = small_run("dtm", data=data, autoencoder=str(tmp_path / "autoencoder"))
    fit(run, tmp_path / "run")
    (tmp_path / "autoencoder" / "autoencoder.safetensors").unlink()  # the run keeps a copy
    pipeline = load_model(str(tmp_path / "run")).pipeline
    assert pipeline.shape == (2, 2, 16)
    assert pipeline.generate(["image number 2"], [0]).images.shape == (1, 3, 16, 16)
    with pytest.raises(ValueError, match="has no autoencoder"):
        fit(run, tmp_path / "other")
    before = (tmp_path / "run" / "autoencoder" / "autoencoder.safetensors").read_bytes()
    for other in (str(tmp_path / "another"), "none"):
        with pytest.raises(ValueError, match="autoencoder"):
            fit(run.model_copy(update={"autoencoder": other}), tmp_path / "run")
    assert (tmp_path / "run" / "autoencoder" / "autoencoder.safetensors").read_bytes() == before
    kept = tmp_path / "run" / "autoencoder"
    (tmp_path / "secret").write_text("secret")
    (kept / "notes.txt").symlink_to(tmp_path / "secret")
    (kept / "autoencoder.safetensors").rename(kept / "weights")
    (kept / "autoencoder.safetensors").symlink_to("weights")  # within the folder; others are refused
    for mask in (0o022, 0o027, 0o077):
        before = os.umask(mask)
        export(load_model(str(tmp_path / "run")), out := tmp_path / f"exported-{mask}")
        os.umask(before)
        weights = ("model.safetensors", "autoencoder/autoencoder.safetensors")
        names = {"model.json", "README.md", "autoencoder", "autoencoder/recipe.json", *weights}
        assert {str(file.relative_to(out)) for file in out.rglob("*")} == names
        assert not any(file.is_symlink() for file in out.rglob("*"))
        modes = {(file.is_dir(), stat.S_IMODE(file.stat().st_mode)) for file in (out, *out.rglob("*"))}
        assert modes == {(True, 0o777 & ~mask), (False, 0o666 & ~mask)}
        leaks = [file for file in out.rglob("*.*") if str(tmp_path).encode() in file.read_bytes()]
        assert not leaks, "no path of this machine"
    same = [load_model(str(folder)).pipeline.codec.state_dict() for folder in (tmp_path / "run", out)]
    assert all(torch.equal(weight, same[1][name]) for name, weight in same[0].items())


def test_encoded_images_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMATCH_CACHE", str(tmp_path / "cache"))
    fit(small_run(), tmp_path / "one")
    with monkeypatch.context() as no_codec:
        no_codec.setattr("tmatch.data.encode.progress_bar", None)
        fit(small_run(), tmp_path / "two")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(x, two[name]) for name, x in one.items())


def test_a_longer_run_replaces_the_weights(tmp_path: Path) -> None:
    fit(small_run(), tmp_path)
    fit(changed(small_run(), steps=8, checkpoint_every=7), tmp_path)
    newest = load_file(tmp_path / "step-00000008" / "ema.safetensors")
    assert all(torch.equal(x, newest[name]) for name, x in load_file(tmp_path / "model.safetensors").items())


def test_loading_leaves_the_global_generator_alone(finished: Path) -> None:
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    load_model(str(finished))
    assert torch.equal(torch.get_rng_state(), expected)


def test_damaged_models_are_rejected(tmp_path: Path) -> None:
    fit(small_run(), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        load_model(str(tmp_path))
    path.write_bytes(whole)
    config = json.loads((tmp_path / "model.json").read_text())
    config["run"]["backbone"]["depth"] = 2
    (tmp_path / "model.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"do not fit its model\.json"):
        load_model(str(tmp_path))
    for foreign in ("{}", "[]", "3", '{"shape": 5}', "not json", json.dumps({**config, "shape": [1]})):
        (tmp_path / "model.json").write_text(foreign)
        with pytest.raises(ValueError, match="does not describe a model"):
            load_model(str(tmp_path))
    with pytest.raises(ValueError, match="did you mean 'shapes-dtm-mean'"):
        load_model("shapes-dtm-maen")


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_models_follow_prompts(name: str) -> None:
    model = load_model(name)
    prompts = model.config.run.data.eval_prompts(100)
    assert prompts is not None
    measured = evaluate(model.pipeline, prompts.captions, sampling=model.config.run.sampling)
    assert measured["captions_satisfied"] > 0.7


def test_withheld_sentences_are_new_but_made_of_known_parts() -> None:
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
        ({"variant": "dmt"}, "did you mean 'dtm'"),
        ({"variant": "artm-3", "sampling": SamplingConfig()}, r"--sampling.steps None"),
        ({"variant": "ar-discrete", "sampling": SamplingConfig(steps=None)}, "set patch to"),
        ({"variant": "fm", "backbone": BackboneConfig(kind="llama")}, r"set backbone\.kind to dit"),
    ],
)
def test_inconsistent_settings_are_rejected_before_any_work(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RunConfig(**{"train": TRAIN, "data": ShapesData(images=40), **settings})


def test_discrete_variants_train_and_generate(tmp_path: Path) -> None:
    data = ShapesData(images=40)
    codes = AutoencoderRun(train=TRAIN, data=data, channels=4, width=8, levels=(3, 3), held_out=4)
    fit(codes, tmp_path / "codes")
    own = {"sampling": SamplingConfig(steps=None), "patch": (1, 1)}
    masked = SamplingConfig(steps=None, iterations=3, order="confidence")
    for name, options in (("ar-discrete", own), ("mar-discrete", {**own, "sampling": masked})):
        fit(small_run(name, **options, autoencoder=str(tmp_path / "codes")), tmp_path / name)
        model = load_model(str(tmp_path / name))
        images = model.pipeline.generate(["a circle"], [0], model.config.run.sampling).images
        assert images.shape == (1, 3, 32, 32)
    with pytest.raises(ValueError, match="needs a discrete autoencoder"):
        fit(small_run("ar-discrete", **own), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists(), "a rejected run writes nothing"
    with pytest.raises(ValueError, match="codebook levels"):
        load_autoencoder_file(tmp_path / "codes" / "autoencoder.safetensors", codes.model_copy(update={"levels": (9,)}))


@pytest.mark.parametrize("levels", [(9,), (2, 2)], ids=["as many codes", "fewer"])
def test_a_model_rejects_another_codebook(levels: tuple[int, ...], tmp_path: Path) -> None:
    data, short = ShapesData(images=20), TRAIN.model_copy(update={"steps": 2})
    for name, own in (("codes", (3, 3)), ("others", levels)):
        fit(AutoencoderRun(train=short, data=data, channels=4, width=8, levels=own, held_out=4), tmp_path / name)
    sampling = SamplingConfig(steps=None)
    run = small_run(
        "ar-discrete", train=short, data=data, autoencoder=str(tmp_path / "codes"), patch=(1, 1), sampling=sampling
    )  # fmt: skip
    fit(run, tmp_path / "run")
    load_model(str(tmp_path / "run"))
    for file in ("recipe.json", "autoencoder.safetensors"):
        (tmp_path / "run" / "autoencoder" / file).write_bytes((tmp_path / "others" / file).read_bytes())
    with pytest.raises(ValueError, match="trained with another autoencoder"):
        load_model(str(tmp_path / "run"))
    with pytest.raises(ValueError, match="another"):
        fit(changed(run, steps=6), tmp_path / "run")


def test_the_density_of_times_is_the_runs_own_or_the_variants() -> None:
    run = small_run("fm")
    assert run.row.times == Continuous(Uniform(), steps=256)
    assert run.model_copy(update={"density": "logit-normal"}).row.times == Continuous(LogitNormal(), steps=256)
    with pytest.raises(ValueError, match="leave out density"):
        RunConfig.model_validate({**small_run("artm-2").model_dump(), "density": "logit-normal"})
