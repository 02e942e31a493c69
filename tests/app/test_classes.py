"""`tmatch generate`, `evaluate`, `tune` and `export` with models of classes, and with unconditional ones."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from commands import assert_rejected, run, succeed
from PIL import Image
from safetensors.torch import load_file, save_file
from small_runs import NETWORKS

import tmatch as tm
from tmatch.data import CaptionedImages
from tmatch.data.images import read_settings
from tmatch.eval import tune

CLASSES = ("shirt", "sneaker", "7")
IMAGES = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def trained(data: tm.TensorData, out: Path) -> Path:
    train = tm.TrainConfig(steps=2, batch_size=4, checkpoint_every=2, validate_every=0, preview_every=2, warmup=0)
    run = tm.RunConfig(variant="dtm", train=train, data=data, patch=(4, 4), validation_images=4, **NETWORKS)
    tm.fit(run, out)
    generator, file = torch.Generator().manual_seed(1), out / "model.safetensors"
    noise = {name: 0.2 * torch.randn(x.shape, generator=generator) for name, x in load_file(file).items()}
    save_file({name: x + noise[name] for name, x in load_file(file).items()}, file)  # gates start at zero
    return out


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tm.TensorData(IMAGES, labels=torch.arange(20) % 3, class_names=CLASSES)
    return trained(data, tmp_path_factory.mktemp("runs") / "labelled")


@pytest.fixture(scope="module")
def unconditional(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tm.TensorData(IMAGES), tmp_path_factory.mktemp("runs") / "unconditional")


def pixels(folder: Path) -> list[bytes]:
    return [Image.open(file).tobytes() for file in sorted(folder.glob("*.png"))]


def same_images(one: Path, other: Path) -> bool:
    """Up to a level of 256, by which batches of other sizes round differently."""
    pairs = zip(b"".join(pixels(one)), b"".join(pixels(other)), strict=True)
    return all(abs(a - b) <= 1 for a, b in pairs)


def test_classes_by_name_index_or_as_prompts_are_the_same(labelled: Path, tmp_path: Path) -> None:
    command = ["generate", "--model", str(labelled), "--images", "2"]
    done = succeed(*command, "--class", "sneaker", "0", "7", "--out", "named", cwd=tmp_path)
    assert [line.split()[-1] for line in done.stdout.splitlines()[:6]] == ["sneaker"] * 2 + ["shirt"] * 2 + ["7"] * 2
    succeed(*command, "--class", "1", "shirt", "2", "--out", "indexed", cwd=tmp_path)
    succeed(*command, "sneaker", "0", "7", "--out", "prompts", cwd=tmp_path)
    assert pixels(tmp_path / "named") == pixels(tmp_path / "indexed") == pixels(tmp_path / "prompts")
    assert len({*pixels(tmp_path / "named")}) == 6
    rows = [json.loads(line) for line in (tmp_path / "indexed" / "metadata.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == ["sneaker"] * 2 + ["shirt"] * 2 + ["7"] * 2
    assert read_settings(tmp_path / "indexed" / "000003.png").items() >= {"class": "shirt", "seed": 3}.items()
    succeed(*command, "--class", "1", "0", "--out", "sheet.png", cwd=tmp_path)
    assert read_settings(tmp_path / "sheet.png").items() >= {"classes": ["sneaker", "shirt"], "images": 2}.items()
    assert {file.suffix for file in (labelled / "previews").iterdir()} == {".png"}


def test_the_null_class_is_that_of_guidance_0(labelled: Path, tmp_path: Path) -> None:
    command = ["generate", "--model", str(labelled), "--images", "3"]
    succeed(*command, "--unconditional", "--out", "null", cwd=tmp_path)
    succeed(*command, "--class", "1", "--guidance", "0", "--out", "zero", cwd=tmp_path)
    succeed(*command, "--class", "1", "--out", "class", cwd=tmp_path)
    assert same_images(tmp_path / "null", tmp_path / "zero")
    assert not same_images(tmp_path / "null", tmp_path / "class")
    settings = read_settings(tmp_path / "null" / "000001.png")
    assert (settings["unconditional"], settings["guidance"], settings.keys() & {"prompt", "class"}) == (True, 1, set())


def test_guidance_pushes_away_from_a_class(labelled: Path, tmp_path: Path) -> None:
    command = ["generate", "--model", str(labelled), "--class", "1", "--guidance", "3"]
    for out, negative in (("none", []), ("named", ["--negative", "shirt"]), ("indexed", ["--negative", "0"])):
        succeed(*command, *negative, "--out", out, cwd=tmp_path)
    assert pixels(tmp_path / "named") == pixels(tmp_path / "indexed") != pixels(tmp_path / "none")
    assert_rejected(run(*command, "--negative", "a cat", "--out", "x", cwd=tmp_path), "no class 'a cat'")


def test_a_captioned_model_generates_without_a_prompt(model: Path, tmp_path: Path) -> None:
    command = ["generate", "--model", str(model), "--images", "2"]
    succeed(*command, "--unconditional", "--out", "null", cwd=tmp_path)
    succeed(*command, "a red circle", "--guidance", "0", "--out", "zero", cwd=tmp_path)
    assert same_images(tmp_path / "null", tmp_path / "zero")


def test_an_unconditional_model_takes_no_prompt(unconditional: Path, tmp_path: Path) -> None:
    command = ["generate", "--model", str(unconditional), "--images", "2"]
    succeed(*command, "--out", "default", cwd=tmp_path)
    succeed(*command, "--unconditional", "--out", "named", cwd=tmp_path)
    assert pixels(tmp_path / "default") == pixels(tmp_path / "named")
    assert read_settings(tmp_path / "named" / "000001.png")["unconditional"] is True
    done = succeed(*command, "--out", "one.png", cwd=tmp_path)
    assert "seed 1  unconditional" in done.stdout
    assert read_settings(tmp_path / "one.png")["unconditional"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--unconditional", "--guidance", "3"], ["--guidance has no effect", "leave it out"]),
        (["--unconditional", "--guidance-schedule", "rising"], ["--guidance-schedule has no effect"]),
        (["--unconditional", "--negative", "shirt"], ["--negative has no effect"]),
        (["--unconditional", "--class", "1"], ["only one of", "--class", "--unconditional"]),
        (["a cat", "--unconditional"], ["only one of", "--unconditional"]),
        (["a cat", "--class", "1"], ["only one of", "--class"]),
        (["--class", "-1"], ["no class '-1'", "from 0 to 2"]),
        ([], ["Give --class", "'shirt'"]),
    ],
)
def test_options_that_exclude_each_other_are_rejected(
    arguments: list[str], words: list[str], labelled: Path, tmp_path: Path
) -> None:
    assert_rejected(run("generate", *arguments, "--model", str(labelled), cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("generate",), ("evaluate", "--prompts", "2")], ids=lambda c: c[0])
def test_guidance_has_no_effect_on_an_unconditional_model(
    command: Sequence[str], unconditional: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out(monkeypatch, tm.TensorData(IMAGES))
    options = ["--model", str(unconditional), "--guidance", "3"]
    assert_rejected(run(*command, *options, cwd=tmp_path), "--guidance has no effect")


def held_out(monkeypatch: pytest.MonkeyPatch, data: tm.TensorData) -> None:
    """Gives the data set of a loaded model its images back, which a run does not store."""

    def images(_: tm.TensorData, count: int, split: str = "test") -> CaptionedImages:
        return data.training()

    monkeypatch.setattr(tm.TensorData, "eval_prompts", images)


@pytest.mark.parametrize("labels", [None, torch.arange(20) % 3])
def test_evaluate_and_tune_need_no_captions(
    labels: torch.Tensor | None,
    labelled: Path,
    unconditional: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune, "CHOICES", {"guidance": (1.0, 4.0), "grid": (None, "shifted:2")})
    monkeypatch.setenv("TMATCH_CACHE", str(tmp_path / "cache"))
    names = None if labels is None else CLASSES
    held_out(monkeypatch, tm.TensorData(IMAGES, labels=labels, class_names=names))
    folder = Path(shutil.copytree(unconditional if labels is None else labelled, tmp_path / "run"))
    result = json.loads(succeed("evaluate", "--model", str(folder), "--json").stdout)
    assert result["energy_distance"] > 0
    metrics = ["--metrics", "frechet", "energy"]
    assert "frechet" in succeed("evaluate", "--model", str(folder), *metrics).stdout
    assert_rejected(run("evaluate", "--model", str(folder), "--metrics", "captions"), "captions checks prompts")
    tuned = json.loads(succeed("tune", str(folder), "--prompts", "3", "--fast=1", "--balanced=2", "--json").stdout)
    assert tuned["metric"] == "energy"
    measured = (tmp_path / "cache").rglob("measurements.jsonl")
    guided = {json.loads(line)["sampling"]["guidance"] for file in measured for line in file.read_text().splitlines()}
    assert guided == ({2.0} if labels is None else {1.0, 2.0, 4.0}), "guidance is not tried where it has no effect"


def test_an_export_says_what_to_ask_for(labelled: Path, unconditional: Path, tmp_path: Path) -> None:
    for folder, task, words in (
        (labelled, "unconditional-image-generation", "--class shirt"), (unconditional, "unconditional-image", ""),
    ):  # fmt: skip
        done = succeed("export", str(folder), "--out", str(tmp_path / folder.name))
        assert f"tmatch generate {words}" in done.stdout
        card = (tmp_path / folder.name / "README.md").read_text()
        assert task in card
        code = card.partition("```python\n")[2].partition("```")[0].replace("image.png", str(tmp_path / "image.png"))
        exec(code.replace(f'"{folder.name}"', f'"{tmp_path / folder.name}"'), {})
        assert Image.open(tmp_path / "image.png").size == (8, 8)
        (tmp_path / "image.png").unlink()
