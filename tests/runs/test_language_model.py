"""Runs on a causal language model of transformers, from a folder as the hub would have it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import TRAIN, small_run
from tiny import save_language_model

from tmatch.app.plan import Hardware, plan_run
from tmatch.generation.config import SamplingConfig
from tmatch.runs import BackboneConfig, InitConfig, RunConfig, fit, load_model
from tmatch.runs.export import export

WITHIN = "model.kernel.backbone.model."
OWN = SamplingConfig(steps=None, head_steps=2)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_language_model(tmp_path / "llama", intermediate_size=48, num_key_value_heads=1, attention_dropout=0.5)


def run(folder: Path | str, steps: int = 2, backbone: dict[str, object] | None = None, **init: object) -> RunConfig:
    train = TRAIN.model_copy(update={"steps": steps, "preview_every": 0, "warmup": 0, "ema_decay": 0.0})
    return small_run(
        "fhtm-2", train=train, sampling=OWN, init=InitConfig.model_validate(init),
        backbone=BackboneConfig.model_validate({"kind": "huggingface", "model": str(folder), **(backbone or {})}),
    )  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_run_is_loaded_without_its_language_model(llama: Path, tmp_path: Path) -> None:
    """Trained in two parts, the second without the folder, it is the same to the bit as in one."""
    fit(run(llama, steps=2), tmp_path / "whole")
    fit(run(llama, steps=1), tmp_path / "parts")
    shutil.rmtree(llama)
    fit(run(llama, steps=2), tmp_path / "parts")
    one, other = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    model = load_model(str(tmp_path / "whole"))
    export(model, tmp_path / "exported", torch.float32)
    again = load_model(str(tmp_path / "exported"))
    assert str(llama) not in (tmp_path / "exported" / "model.json").read_text()
    images = [one.pipeline.generate(["a red circle"], [3], OWN).images for one in (model, again)]
    assert torch.equal(*images)
    architecture = model.config.architecture
    assert architecture is not None
    assert (architecture["model_type"], architecture["hidden_size"]) == ("llama", 24)
    assert (architecture["vocab_size"], architecture["attention_dropout"]) == (1, 0.0)


def test_pretrained_weights_are_loaded_and_may_be_frozen(llama: Path, tmp_path: Path) -> None:
    pretrained = load_file(llama / "model.safetensors")
    fit(run(llama, steps=3), tmp_path / "random")
    fit(run(llama, steps=3, pretrained=True), tmp_path / "tuned")
    fit(run(llama, steps=3, pretrained=True, freeze=True), tmp_path / "frozen")
    fit(run(llama, steps=1, pretrained=True, freeze=True), tmp_path / "one")  # the read-out of step 1 is zero
    random, tuned, frozen, one = (weights(tmp_path / name) for name in ("random", "tuned", "frozen", "one"))
    layers = {WITHIN + name.removeprefix("model."): x for name, x in pretrained.items() if "embed" not in name}
    layers = {name: x for name, x in layers.items() if name in tuned}
    assert len(layers) == 2 * 9 + 1
    for name, x in layers.items():
        assert torch.equal(frozen[name], x)
        torch.testing.assert_close(tuned[name], x, atol=5e-3, rtol=0)  # three steps of 1e-3
    assert any(not torch.equal(tuned[name], frozen[name]) for name in layers)
    assert any((random[name] - x).abs().max() > 0.01 for name, x in layers.items())
    assert not torch.equal(frozen["model.kernel.backbone.x_in.weight"], one["model.kernel.backbone.x_in.weight"])
    load_model(str(tmp_path / "frozen"))


def test_lora_trains_the_new_layers_too(llama: Path, tmp_path: Path) -> None:
    """The layers that read the image are new, and the pretrained ones change by matrices of low rank."""
    fit(run(llama, steps=4, pretrained=True, lora=1), tmp_path / "lora")
    fit(run(llama, steps=4, pretrained=True, freeze=True), tmp_path / "frozen")
    tuned, frozen = weights(tmp_path / "lora"), weights(tmp_path / "frozen")
    changed = {name for name in frozen if not torch.equal(tuned[name], frozen[name])}
    assert WITHIN + "norm.weight" not in changed
    assert "model.kernel.backbone.x_in.weight" in changed
    (layer,) = {name for name in changed if name.endswith("0.mlp.down_proj.weight")}
    assert torch.linalg.matrix_rank(tuned[layer] - frozen[layer], atol=1e-6) <= 1


def test_a_plan_counts_a_language_model(llama: Path) -> None:
    free, frozen = (
        plan_run(run(llama, pretrained=True, freeze=freeze, backbone={"checkpointing": True}), Hardware())
        for freeze in (False, True)
    )
    assert free.parameters == frozen.parameters
    assert 0 < frozen.trained["backbone"] < free.trained["backbone"] / 2
    plain, checkpointed = free.activations
    assert checkpointed is not None
    assert checkpointed.peak < plain.peak


def test_checkpointing_changes_no_gradient(llama: Path, tmp_path: Path) -> None:
    fit(run(llama, steps=1), tmp_path / "plain")
    fit(run(llama, steps=1, backbone={"checkpointing": True}), tmp_path / "less")
    plain, less = weights(tmp_path / "plain"), weights(tmp_path / "less")
    assert all(torch.equal(x, less[name]) for name, x in plain.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"num_hidden_layers": 10**9}, "at most 1,000 layers"),
        ({"model_type": "unheard-of"}, "unheard-of"),
    ],
)
def test_impossible_configurations_are_rejected(
    llama: Path, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    fit(run(llama, steps=1), tmp_path / "run")
    for file, fields in ((llama / "config.json", None), (tmp_path / "run" / "model.json", "architecture")):
        saved = json.loads(file.read_text())
        (saved if fields is None else saved[fields]).update(change)
        file.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=words):
        load_model(str(tmp_path / "run"))
    with pytest.raises(ValueError, match=words):
        fit(run(llama, steps=1), tmp_path / "new")


def test_code_named_by_a_configuration_is_not_run(llama: Path, tmp_path: Path) -> None:
    """Neither a class of the folder, nor a kernel from the hub."""
    config = json.loads((llama / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Config"}, "attn_implementation": "somebody/evil-kernel"}
    (llama / "config.json").write_text(json.dumps(config))
    (llama / "evil.py").write_text("raise SystemExit('remote code')")
    fit(run(llama, steps=1), tmp_path / "run")
    assert (
        not {"auto_map", "attn_implementation"} & (load_model(str(tmp_path / "run")).config.architecture or {}).keys()
    )


def test_what_is_missing_is_named(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no folder"):
        fit(run(tmp_path / "gone"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"set backbone\.model"):
        fit(run(llama, backbone={"model": None}), tmp_path / "run")
    with pytest.raises(ValueError, match=r"set backbone\.kind to huggingface"):
        small_run("fm", init=InitConfig(pretrained=True))
    with pytest.raises(ValueError, match="BertModel is not causal"):
        fit(run(save_language_model(tmp_path / "bert", "Bert", intermediate_size=48)), tmp_path / "run")
