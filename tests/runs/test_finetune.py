"""Fine-tuning."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file

from tmatch.app.plan import Hardware, planned
from tmatch.data import InMemory
from tmatch.recipes import RECIPES, GeneratorRecipe, load_model
from tmatch.runs.base import AssumedData, BackboneSettings, HeadSettings, SamplingSettings
from tmatch.runs.export import model_card
from tmatch.runs.finetune import StartSettings
from tmatch.runs.generator import TextSettings
from tmatch.runs.load import about_model, open_model
from tmatch.runs.settings import FolderData, ShapesData
from tmatch.train import Captioned, GeneratorTask, TrainConfig

BACKBONE = "model.kernel.backbone."


def recipe(variant: str, steps: int = 4, **start: object) -> GeneratorRecipe[ShapesData]:
    return GeneratorRecipe[ShapesData](
        train=TrainConfig(steps=steps, batch_size=4, device="cpu", warmup=0, ema_decay=0.0, checkpoint_every=2, validate_every=0),
        variant=variant, data=ShapesData(images=20), backbone=BackboneSettings(width=16, depth=1, heads=2),
        head=HeadSettings(width=16, depth=1), text=TextSettings(width=16, heads=2), validation_images=2, held_out=2,
        sampling=SamplingSettings(steps=2, head_steps=1), init=StartSettings.model_validate(start),
    )  # fmt: skip


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "fm"
    recipe("fm").run(out)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def test_flow_matching_becomes_dtm(flow: Path, tmp_path: Path) -> None:
    """With its backbone, mean read-out and text encoder as they were: only the head is learnt."""
    recipe("dtm-mean", model=str(flow), freeze=True).run(tmp_path / "long")
    recipe("dtm-mean", steps=1, model=str(flow), freeze=True).run(tmp_path / "short")
    before, once, after = weights(flow), weights(tmp_path / "short"), weights(tmp_path / "long")
    assert "model.kernel.readout.weight" in before
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    learnt = [name for name in after if name not in before]
    assert all(name.startswith("model.kernel.flow.") for name in learnt)
    assert not any(torch.equal(after[name], once[name]) for name in learnt)


def test_it_says_how_much_is_taken(flow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe("fm", steps=1, model=str(flow)).run(tmp_path / "same")
    assert f"tmatch: all {len(weights(flow))} weights are taken from {flow}\n" in capsys.readouterr().err
    recipe("dtm-mean", steps=1, model=str(flow)).run(tmp_path / "more")
    assert f"tmatch: {len(weights(flow))} weights are taken from {flow}, the rest is new\n" in capsys.readouterr().err


def test_a_backbone_that_is_not_frozen_goes_on_learning(flow: Path, tmp_path: Path) -> None:
    recipe("dtm", model=str(flow)).run(tmp_path / "long")
    recipe("dtm", steps=1, model=str(flow)).run(tmp_path / "short")
    before, after = weights(flow), weights(tmp_path / "long")
    assert not any(torch.equal(after[name], before[name]) for name in before if name.startswith(BACKBONE + "blocks"))
    nearest, far = ((weights(tmp_path / out)[BACKBONE + "x_in.weight"]) for out in ("short", "long"))
    start = before[BACKBONE + "x_in.weight"]
    assert (nearest - start).norm() < (far - start).norm() < start.norm()


def test_lora_changes_little_and_leaves_a_plain_model(flow: Path, tmp_path: Path) -> None:
    tuned = recipe("fm", model=str(flow), lora=2)
    tuned.run(tmp_path)
    before, after = weights(flow), weights(tmp_path)
    assert set(before) == set(after)
    changes = {name: after[name] - before[name] for name in before if name.startswith(BACKBONE)}
    for name, change in changes.items():
        layer = "blocks" in name and name.endswith("weight") and change.ndim == 2
        rank = torch.linalg.matrix_rank(change, atol=1e-6) if layer else 0
        assert rank <= 2 if layer else not change.any(), name
    assert any(change.any() for change in changes.values())
    final = load_model(str(tmp_path))[0]
    (tmp_path / "model.safetensors").unlink()  # as while it goes on: from a checkpoint, which keeps the two apart
    midway = load_model(str(tmp_path))[0]
    drawn = [pipeline.generate(["a red circle"], [0], steps=2).images for pipeline in (final, midway)]
    assert torch.equal(*drawn)


def test_it_resumes_without_the_model_it_started_from(
    flow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for out, lora in (("lora", 2), ("plain", 0)):
        tuned = recipe("dtm", model=str(flow), lora=lora)
        tuned.run(tmp_path / "whole" / out)
        tuned.model_copy(update={"train": tuned.train.model_copy(update={"steps": 2})}).run(tmp_path / out)
        with monkeypatch.context() as gone:
            gone.setattr("tmatch.runs.load.read_model", None)
            gone.setattr("tmatch.runs.load.about_model", None)
            tuned.run(tmp_path / out)
        whole = weights(tmp_path / "whole" / out)
        assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(tmp_path / out).items())


def test_words_keep_their_vectors_in_another_vocabulary(flow: Path, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), "red").save(tmp_path / "0.png")
    lines = [json.dumps({"file_name": "0.png", "text": f"another red thing {k}"}) for k in range(40)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    settings = recipe("fm", steps=1, model=str(flow)).model_dump() | {"data": FolderData(folder=tmp_path, size=32)}
    GeneratorRecipe[FolderData].model_validate(settings).run(tmp_path / "run")
    then, now = load_model(str(flow))[0].encoder, load_model(str(tmp_path / "run"))[0].encoder
    assert then.vocabulary.index("red") != now.vocabulary.index("red")
    rows = [encoder.words.weight[encoder.vocabulary.index("red") + 2] for encoder in (then, now)]
    torch.testing.assert_close(*rows, atol=5e-3, rtol=0)  # one step of 1e-3


def test_new_words_are_learnt_though_all_that_was_taken_is_frozen(flow: Path, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), "red").save(tmp_path / "0.png")
    lines = [json.dumps({"file_name": "0.png", "text": f"another red thing {k}"}) for k in range(40)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    data = {"data": FolderData(folder=tmp_path, size=32)}
    found = []
    for steps in (1, 3):
        settings = recipe("fm", steps=steps, model=str(flow), freeze=True).model_dump() | data
        GeneratorRecipe[FolderData].model_validate(settings).run(tmp_path / str(steps))
        found.append(load_model(str(tmp_path / str(steps)))[0])
    one, other = (pipeline.encoder.words.weight[pipeline.encoder.vocabulary.index("thing") + 2] for pipeline in found)
    assert not torch.equal(one, other)
    before, after = weights(flow), weights(tmp_path / "3")
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith(BACKBONE))


@pytest.mark.parametrize("start", [{"freeze": True}, {"lora": 2}, {}], ids=["freeze", "lora", "whole"])
def test_a_plan_holds_what_training_holds(flow: Path, tmp_path: Path, start: dict[str, object]) -> None:
    """Parameter by parameter, though it reads no weight."""
    tuned, shape = recipe("dtm-mean", model=str(flow), **start), about_model(str(flow))[1].shape
    with torch.device("meta"):
        planned = tuned.network(shape, tuned.text.width)
        tuned.init.preflight(planned)
    pipeline = tuned.build(tuned.codec(), shape, ("red",))
    task = GeneratorTask(pipeline.model, pipeline.encoder, Captioned(InMemory(torch.zeros(1, *shape)), ["red"]))
    tuned.init.apply(task, 0, tmp_path, first=True)
    locked = {name: (p.shape, p.requires_grad) for name, p in task.model.named_parameters()}
    assert {name: (p.shape, p.requires_grad) for name, p in planned.named_parameters()} == locked
    assert len({requires for _, requires in locked.values()}) == (2 if start else 1)


def test_a_frozen_backbone_is_planned_without_its_way_back() -> None:
    """Nor are gradients and moments of it held."""
    given = AssumedData(size=64, text_length=8, text_width=32)
    dtm = recipe("dtm-mean", model="shapes-fm").init
    plans = []
    for start in (dtm, dtm.model_copy(update={"freeze": True})):
        whole = RECIPES["shapes-dtm-mean"]().model_copy(update={"init": start})
        plans.append(planned(whole, Hardware(gpus=2), given))
    free, frozen = plans
    assert frozen.parameters == free.parameters == free.trained
    assert frozen.trained == {"backbone": 0, "head": free.parameters["head"], "other": 0}
    assert frozen.flops["backbone"] == pytest.approx(free.flops["backbone"] / 3, rel=0.05)
    assert frozen.flops["head"] == pytest.approx(free.flops["head"], rel=0.1)  # no gradient goes on to the backbone
    for way, memory in frozen.memory.items():
        assert memory.moments < free.memory[way].moments / 3
        assert memory.weights == free.memory[way].weights


def test_a_rehearsal_refuses_what_a_run_would_and_no_more(flow: Path, tmp_path: Path) -> None:
    missing = recipe("fm", model=str(tmp_path / "gone"))
    wider = recipe("fm", model=str(flow)).model_copy(update={"backbone": BackboneSettings(width=32, depth=1, heads=2)})
    for refused, words in ((missing, "There is no model"), (wider, r"has another backbone .*--backbone.width 16")):
        with pytest.raises(ValueError, match=words):
            refused.preflight(tmp_path / "run")
    recipe("fm", model=str(flow), freeze=True).preflight(tmp_path / "run")  # which has words to learn, if some are new
    begun = recipe("dtm", steps=1, model=str(flow), freeze=True)
    begun.run(tmp_path / "begun")
    begun.model_copy(update={"init": StartSettings(model=str(tmp_path / "gone"), freeze=True)}).preflight(
        tmp_path / "begun"
    )


def test_a_card_says_what_a_model_was_before(flow: Path, tmp_path: Path) -> None:
    for out, (words, start) in {
        "lora": ("Fine-tuned from another model of its author by LoRA of rank 2.", {"lora": 2}),
        "whole": ("Fine-tuned from another model of its author.", {}),
    }.items():
        recipe("fm", steps=1, model=str(flow), **start).run(tmp_path / out)
        card = model_card(open_model(str(tmp_path / out)), out)
        assert words in card
        assert str(flow) not in card
    assert "Fine-tuned" not in model_card(open_model(str(flow)), "flow")


def test_what_does_not_go_together_is_refused(flow: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"set init\.model"):
        recipe("fm", freeze=True)
    with pytest.raises(ValidationError, match=r"leave out init\.freeze or init\.lora"):
        recipe("fm", model=str(flow), freeze=True, lora=2)
    wider = recipe("fm", model=str(flow)).model_copy(update={"backbone": BackboneSettings(width=32, depth=1, heads=2)})
    with pytest.raises(ValueError, match=r"has another backbone \(.* is .*16.* there, and .*32.* here\)") as refused:
        wider.run(tmp_path / "wider")
    assert "--backbone.kind dit --backbone.width 16 --backbone.depth 1 --backbone.heads 2, and data" in str(
        refused.value
    )
    with pytest.raises(ValueError, match="nothing is left to train"):
        recipe("fm", model=str(flow), freeze=True).run(tmp_path / "frozen")
    with pytest.raises(ValueError, match="There is no model 'shapes-fn'"):
        recipe("fm", model="shapes-fn").run(tmp_path / "none")
