"""Training on tensors from Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import NETWORKS
from torch import Tensor

import tmatch as tm
from tmatch.codec import Codec
from tmatch.data.encode import CaptionedImages
from tmatch.runs import preflight

IMAGES = torch.rand(22, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(22) % 4
CAPTIONS = ["a cat", "two dogs"] * 11


def run_of(data: tm.TensorData, variant: str = "dtm", steps: int = 2, **changes: Any) -> tm.RunConfig:  # noqa: ANN401
    train = tm.TrainConfig(steps=steps, batch_size=4, checkpoint_every=1, validate_every=2, warmup=0)
    own = {**NETWORKS, "train": train, "data": data, "patch": (4, 4), "validation_images": 4, **changes}
    return tm.RunConfig(variant=variant, **own)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"labels": LABELS}, {"class_labels": [3, 0]}),
        ({"labels": LABELS.tolist(), "class_names": list("abcd")}, {"class_labels": ["d", "a"]}),
        ({"captions": CAPTIONS}, {"prompt": ["two dogs", "a cat"]}),
        ({}, {"num_images_per_prompt": 2}),
    ],
)
def test_labels_captions_or_nothing(given: dict[str, Any], asked: dict[str, Any], tmp_path: Path) -> None:
    tm.fit(run_of(tm.TensorData(IMAGES, **given)), tmp_path / "run")
    pipe = tm.Pipeline.from_pretrained(tmp_path / "run")
    images = pipe(**asked).tensors
    assert images.shape == (2, 3, 8, 8)
    assert pipe(unconditional=True).images[0].size == (8, 8)
    with pytest.raises(ValueError, match="guidance_scale has no effect"):
        pipe(unconditional=True, guidance_scale=2.0)
    pipe.save_pretrained(tmp_path / "mine")
    assert torch.equal(tm.Pipeline.from_pretrained(tmp_path / "mine")(**asked).tensors, images)


@pytest.mark.parametrize("variant", [name for name, row in tm.VARIANTS.items() if not row.discrete])
def test_every_continuous_variant_trains_on_tensors(variant: str, tmp_path: Path) -> None:
    """The width holds both X_t and Y, as masked variants need."""
    small = {"backbone": tm.BackboneConfig(width=32, depth=1, heads=2), "patch": (2, 2)}
    sampling = tm.SamplingConfig(steps=None)
    tm.fit(run_of(tm.TensorData(IMAGES, labels=LABELS), variant, steps=1, sampling=sampling, **small), tmp_path)
    assert tm.Pipeline.from_pretrained(tmp_path)(class_labels=3).tensors.shape == (1, 3, 8, 8)


def held_out(data: tm.TensorData) -> CaptionedImages:
    return data.validation(100)


def test_one_image_in_twenty_is_held_out_with_its_label() -> None:
    data = tm.TensorData(IMAGES, labels=LABELS)
    training, validation = data.training(), data.validation(100)
    assert (len(training), len(validation)) == (21, 1)
    assert torch.equal(validation.load([0])[0], IMAGES[19])
    assert validation.captions == [int(LABELS[19])]
    assert torch.equal(training.load(range(21)), torch.cat([IMAGES[:19], IMAGES[20:]]))
    assert training.captions == [*LABELS[:19].tolist(), *LABELS[20:].tolist()]
    assert len(tm.TensorData(IMAGES.repeat(10, 1, 1, 1)).validation(4)) == 4
    assert {len(tm.TensorData(IMAGES[:2]).training()), len(held_out(tm.TensorData(IMAGES[:2])))} == {1}


def test_8_bit_images_and_arrays_are_the_same_images() -> None:
    pixels = (IMAGES * 255).round().to(torch.uint8)
    expected = tm.TensorData(pixels.float() / 255).training().load(range(21))
    for images in (pixels, pixels.numpy(), pixels.numpy().astype(np.float32) / 255):
        torch.testing.assert_close(tm.TensorData(images).training().load(range(21)), expected)


def test_a_run_resumes_only_on_the_same_tensors(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    tm.fit(run_of(tm.TensorData(IMAGES, labels=LABELS), steps=4), whole)
    tm.fit(run_of(tm.TensorData(IMAGES, labels=LABELS)), part)
    other = IMAGES.clone()
    other[3, 0, 0, 0] = 1 - other[3, 0, 0, 0]
    for data in (tm.TensorData(other, labels=LABELS), tm.TensorData(IMAGES, labels=LABELS.flip(0))):
        with pytest.raises(ValueError, match="run on other data"):
            tm.fit(run_of(data, steps=4), part)
    tm.fit(run_of(tm.TensorData(IMAGES.clone(), labels=LABELS.tolist()), steps=4), part)
    one, resumed = (load_file(out / "model.safetensors") for out in (whole, part))
    assert all(torch.equal(one[name], resumed[name]) for name in one)


def test_a_loaded_configuration_has_no_tensors(tmp_path: Path) -> None:
    tm.fit(run_of(tm.TensorData(IMAGES)), tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["run"]["data"] == {"kind": "tensors"}
    run = tm.load_model(str(tmp_path)).config.run
    assert run.data.eval_prompts(3) is None
    with pytest.raises(ValueError, match=r"pass TensorData\(images"):
        preflight(run, tmp_path / "new")
    tm.fit(run.model_copy(update={"data": tm.TensorData(IMAGES)}), tmp_path / "new")


@pytest.mark.parametrize("channels", [3, 4])
def test_latents_pass_through_unchanged(channels: int, tmp_path: Path) -> None:
    latents = 3 * torch.randn(22, channels, 4, 6)
    data = tm.TensorData(latents=latents, labels=LABELS)
    tm.fit(run_of(data, patch=(2, 2)), tmp_path / "run")
    loaded = tm.load_model(str(tmp_path / "run"))
    codec: Codec = loaded.pipeline.codec
    assert loaded.config.shape == (2, 3, 4 * channels)
    assert torch.equal(codec.decode(codec.encode(latents)), latents)
    pipe = tm.Pipeline(loaded)
    assert pipe(class_labels=[0, 1], output_type="pt").images.shape == (2, channels, 4, 6)
    with pytest.raises(ValueError, match="output_type='pt'"):
        pipe(class_labels=0)
    pipe.save_pretrained(tmp_path / "mine")
    assert tm.Pipeline.from_pretrained(tmp_path / "mine")(class_labels=0, output_type="np").images.shape[-1] == channels


def test_flow_matching_on_tensors_becomes_dtm(tmp_path: Path) -> None:
    fm = run_of(tm.TensorData(IMAGES, labels=LABELS), "fm")
    tm.fit(fm, tmp_path / "fm")
    frozen = tm.InitConfig(model=str(tmp_path / "fm"), freeze=True)
    tm.fit(fm.model_copy(update={"variant": "dtm", "init": frozen}), tmp_path / "dtm")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("fm", "dtm"))
    kept = [name for name in after if "distribution" not in name]
    assert any(name.startswith("encoder.") for name in kept)
    assert all(torch.equal(after[name], before[name]) for name in kept)


@pytest.mark.parametrize("names", [["b", "a", "c"], ["c", "new", "b", "a"]])
def test_fine_tuning_finds_classes_by_name(names: list[str], tmp_path: Path) -> None:
    """A frozen table with a new class is trained."""
    tm.fit(run_of(tm.TensorData(IMAGES, labels=LABELS % 3, class_names=["a", "b", "c"]), "fm"), tmp_path / "fm")
    init = tm.InitConfig(model=str(tmp_path / "fm"), freeze=True)
    new = tm.TensorData(IMAGES, labels=LABELS % len(names), class_names=names)
    tm.fit(run_of(new, init=init, steps=4), tmp_path / "dtm")
    files = [tmp_path / name / "model.safetensors" for name in ("fm", "dtm")]
    before, after = (load_file(file)["encoder.table.weight"] for file in files)
    rows = torch.stack([before[["a", "b", "c"].index(name)] for name in names if name != "new"] + [before[-1]])
    kept = torch.stack([after[k] for k, name in enumerate(names) if name != "new"] + [after[-1]])
    change = (kept - rows).abs().max()
    assert 0 < change < 0.01 if "new" in names else change == 0


def changed(index: tuple[int, ...], value: float) -> Tensor:
    images = IMAGES.clone()
    images[index] = value
    return images


@pytest.mark.parametrize(
    ("images", "given", "named"),
    [
        (IMAGES, {"labels": LABELS[:5]}, "5 labels for 22 images"),
        (IMAGES, {"captions": CAPTIONS[:5]}, "5 captions for 22 images"),
        (IMAGES, {"labels": LABELS, "class_names": ["a", "b", "c"]}, "from 0 to 2, .* got 0 to 3"),
        (IMAGES, {"labels": LABELS - 1}, "got -1 to 2"),
        (IMAGES, {"labels": LABELS.float()}, "float32"),
        (IMAGES, {"labels": LABELS > 1}, "bool"),
        (IMAGES, {"labels": LABELS[:, None]}, r"\(22, 1\)"),
        (IMAGES, {"labels": CAPTIONS}, "class_names"),
        (IMAGES, {"labels": LABELS, "captions": CAPTIONS}, "not both"),
        (IMAGES, {"class_names": ["a", "b"]}, "pass labels, too"),
        (IMAGES, {"captions": [3] * 22}, "string"),
        (IMAGES, {"latents": IMAGES}, "images or on latents"),
        (2 * IMAGES - 1, {}, r"\(images \+ 1\) / 2"),
        (255 * IMAGES, {}, "images / 255"),
        ((255 * IMAGES).long(), {}, "int64"),
        (changed((3, 0, 1, 1), torch.nan), {}, "NaN"),
        (IMAGES.movedim(1, -1), {}, r"images.movedim\(-1, 1\)"),
        ((255 * IMAGES).to(torch.uint8).movedim(1, -1), {}, r"images.movedim\(-1, 1\)"),
        (IMAGES[:, :1], {}, r"expand\(-1, 3, -1, -1\)"),
        (IMAGES[0], {}, r"\(3, 8, 8\)"),
        (IMAGES[:1], {}, "at least two images"),
        (None, {"latents": LABELS}, "int64"),
        (None, {"latents": changed((0, 0, 0, 0), torch.inf)}, "latents contains non-finite"),
    ],
)
def test_invalid_tensors_are_rejected(images: Tensor | None, given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tm.TensorData(images, **given)


def test_latents_take_neither_autoencoder_nor_previews(tmp_path: Path) -> None:
    run = run_of(tm.TensorData(latents=IMAGES))
    with pytest.raises(ValueError, match="leave out autoencoder"):
        tm.fit(run.model_copy(update={"autoencoder": "shapes"}), tmp_path)
    with pytest.raises(ValueError, match=r"train.preview_every to 0"):
        tm.fit(run.model_copy(update={"train": run.train.model_copy(update={"preview_every": 1})}), tmp_path)
