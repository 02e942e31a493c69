"""Fine-tuning."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_runs import init_run

from tmatch.app.plan import Hardware, plan_run
from tmatch.conditioning import WordEncoder
from tmatch.data import InMemory
from tmatch.datasets import FolderData, ShapesData
from tmatch.recipes import RECIPES
from tmatch.runs import BackboneConfig, InitConfig, fit, load_model, preflight
from tmatch.runs.export import model_card
from tmatch.runs.finetune import _loaded_names, apply_init, preflight_init
from tmatch.runs.load import read_config
from tmatch.train import Captioned, GeneratorTask

BACKBONE = "model.kernel.backbone."


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "fm"
    fit(init_run("fm"), out)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def test_flow_matching_becomes_dtm(flow: Path, tmp_path: Path) -> None:
    """The backbone, the mean read-out and the text encoder stay; only the head is trained."""
    fit(init_run("dtm-mean", model=str(flow), freeze=True), tmp_path / "long")
    fit(init_run("dtm-mean", steps=1, model=str(flow), freeze=True), tmp_path / "short")
    before, once, after = weights(flow), weights(tmp_path / "short"), weights(tmp_path / "long")
    assert "model.kernel.readout.weight" in before
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    learned = [name for name in after if name not in before]
    assert all(name.startswith("model.kernel.distribution.") for name in learned)
    assert not any(torch.equal(after[name], once[name]) for name in learned)


def test_a_backbone_that_is_not_frozen_is_trained(flow: Path, tmp_path: Path) -> None:
    fit(init_run("dtm", model=str(flow)), tmp_path)
    before, after = weights(flow), weights(tmp_path)
    assert not any(torch.equal(after[name], before[name]) for name in before if name.startswith(BACKBONE + "blocks"))
    start = before[BACKBONE + "x_in.weight"]
    assert (after[BACKBONE + "x_in.weight"] - start).norm() < start.norm()


def test_lora_has_low_rank_and_writes_a_plain_model(flow: Path, tmp_path: Path) -> None:
    fit(init_run("fm", model=str(flow), lora=2), tmp_path)
    before, after = weights(flow), weights(tmp_path)
    assert set(before) == set(after)
    changes = {name: after[name] - before[name] for name in before if name.startswith(BACKBONE)}
    for name, change in changes.items():
        layer = "blocks" in name and name.endswith("weight") and change.ndim == 2
        rank = torch.linalg.matrix_rank(change, atol=1e-6) if layer else 0
        assert rank <= 2 if layer else not change.any(), name
    assert any(change.any() for change in changes.values())
    final = load_model(str(tmp_path)).pipeline
    (tmp_path / "model.safetensors").unlink()  # now from a checkpoint, where the adapters are separate
    midway = load_model(str(tmp_path)).pipeline
    assert torch.equal(*(pipeline.generate(["a red circle"], [0]).images for pipeline in (final, midway)))


def test_it_resumes_without_the_initial_model(flow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for out, lora in (("lora", 2), ("plain", 0)):
        tuned = init_run("dtm", model=str(flow), lora=lora)
        fit(tuned, tmp_path / "whole" / out)
        fit(init_run("dtm", steps=2, model=str(flow), lora=lora), tmp_path / out)
        with monkeypatch.context() as gone:
            gone.setattr("tmatch.runs.finetune.read_model", None)
            gone.setattr("tmatch.runs.finetune.read_config", None)
            fit(tuned, tmp_path / out)
        whole = weights(tmp_path / "whole" / out)
        assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(tmp_path / out).items())


def test_names_of_frozen_weights_are_migrated(tmp_path: Path) -> None:
    (tmp_path / "taken.json").write_text('["encoder.places.weight", "model.kernel.flow.head.out.weight"]')
    assert _loaded_names(tmp_path) == ["encoder.positions.weight", "model.kernel.distribution.head.out.weight"]


def test_words_keep_their_vectors_in_another_vocabulary(flow: Path, tmp_path: Path) -> None:
    """And new words are trained, even if everything that was loaded is frozen."""
    Image.new("RGB", (32, 32), "red").save(tmp_path / "0.png")
    lines = [json.dumps({"file_name": "0.png", "text": f"another red thing {k}"}) for k in range(40)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    encoders = []
    for steps in (1, 3):
        run = init_run("fm", steps=steps, model=str(flow), freeze=True)
        fit(run.model_copy(update={"data": FolderData(folder=tmp_path, size=32)}), tmp_path / str(steps))
        encoders.append(load_model(str(tmp_path / str(steps))).pipeline.encoder)
    old, (one, three) = load_model(str(flow)).pipeline.encoder, encoders
    assert isinstance(old, WordEncoder)

    def row(encoder: WordEncoder, word: str) -> torch.Tensor:
        return encoder.words.weight[encoder.vocabulary.index(word) + 2]

    assert old.vocabulary.index("red") != one.vocabulary.index("red")
    torch.testing.assert_close(row(old, "red"), row(one, "red"), atol=5e-3, rtol=0)  # one step of 1e-3
    assert not torch.equal(row(one, "thing"), row(three, "thing"))
    before, after = weights(flow), weights(tmp_path / "3")
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith(BACKBONE))


@pytest.mark.parametrize("init", [{"freeze": True}, {"lora": 2}, {}], ids=["freeze", "lora", "full"])
def test_a_plan_freezes_what_training_freezes(flow: Path, tmp_path: Path, init: dict[str, object]) -> None:
    """Parameter by parameter, though it reads no weight."""
    tuned, config = init_run("dtm-mean", model=str(flow), **init), read_config(str(flow))[1]
    with torch.device("meta"):
        planned = tuned.network(config.shape, config.encoders.condition_width)
        preflight_init(tuned.init, planned)
    model = tuned.network(config.shape, config.encoders.condition_width)
    encoder = config.encoders.conditioner(flow)
    task = GeneratorTask(model, encoder, Captioned(InMemory(torch.zeros(1, *config.shape)), ["red"]))
    apply_init(tuned, task, config.encoders, tmp_path)
    frozen = {name: (p.shape, p.requires_grad) for name, p in task.model.named_parameters()}
    assert {name: (p.shape, p.requires_grad) for name, p in planned.named_parameters()} == frozen
    assert len({requires for _, requires in frozen.values()}) == (2 if init else 1)


def test_a_frozen_backbone_is_planned_without_its_backward_pass() -> None:
    """Nor with its gradients and optimizer states."""
    plans = []
    for freeze in (False, True):
        init = InitConfig(model="shapes-fm", freeze=freeze)
        run = RECIPES["shapes-dtm-mean"]().model_copy(update={"init": init, "data": ShapesData(images=1)})
        plans.append(plan_run(run, Hardware(gpus=2)))
    free, frozen = plans
    assert frozen.parameters == free.parameters == free.trained
    assert frozen.trained == {"backbone": 0, "head": free.parameters["head"], "other": 0}
    assert frozen.flops["backbone"] == pytest.approx(free.flops["backbone"] / 3, rel=0.05)
    assert frozen.flops["head"] == pytest.approx(free.flops["head"], rel=0.1)
    for way, memory in frozen.memory.items():
        assert memory.moments < free.memory[way].moments / 3
        assert memory.weights == free.memory[way].weights


def test_preflight_raises_what_a_run_would_raise(flow: Path, tmp_path: Path) -> None:
    wider = init_run("fm", model=str(flow)).model_copy(update={"backbone": BackboneConfig(width=32, depth=1, heads=2)})
    sizes = r"has another backbone .*--backbone.kind dit --backbone.width 16 --backbone.depth 1 --backbone.heads 2 "
    for wrong, words in ((init_run("fm", model=str(tmp_path / "gone")), "There is no model"), (wider, sizes)):
        for check in (preflight, fit):
            with pytest.raises(ValueError, match=words):
                check(wrong, tmp_path / "run")
    with pytest.raises(ValueError, match="leaves none to train"):
        fit(init_run("fm", model=str(flow), freeze=True), tmp_path / "frozen")
    fit(init_run("dtm", steps=1, model=str(flow), freeze=True), tmp_path / "begun")
    resumed = init_run("dtm", steps=1, model=str(flow), freeze=True)
    preflight(resumed, tmp_path / "begun")  # needs no model any more


def test_a_card_names_the_initial_model_without_its_path(flow: Path, tmp_path: Path) -> None:
    fit(init_run("fm", steps=1, model=str(flow), lora=2), tmp_path / "lora")
    card = model_card(load_model(str(tmp_path / "lora")), "lora")
    assert "Fine-tuned from an unpublished model by LoRA of rank 2." in card
    assert str(flow) not in card
    assert "Fine-tuned" not in model_card(load_model(str(flow)), "flow")
