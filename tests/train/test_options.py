"""Options of a run: validation, previews, compilation, precision."""

import sys
from pathlib import Path

import pytest
import torch
from laws import SHAPE, awake, condition

import tmatch as tm
from tmatch.times import FixedTime
from tmatch.train import GeneratorTask, TrainConfig

sys.path.insert(0, str(Path(__file__).parent))
from small_run import task, trainer


def test_validation_and_previews_change_no_weight(tmp_path: Path) -> None:
    plain = trainer(tmp_path / "plain", steps=6, validate_every=0)
    watched = trainer(tmp_path / "watched", steps=6, validate_every=2, preview_every=3, tensorboard=True)
    watched.preview = lambda _: torch.zeros(3, 4, 4)
    plain.run()
    watched.run()
    for a, b in zip(plain.task.parameters(), watched.task.parameters(), strict=True):
        assert torch.equal(a, b)
    names = {file.name for file in (tmp_path / "watched" / "previews").iterdir()}
    assert names == {f"step-0000000{k}-{weights}.png" for k in (3, 6) for weights in ("raw", "ema")}
    assert list((tmp_path / "watched" / "tensorboard").iterdir())
    assert not (tmp_path / "plain" / "validation.jsonl").exists()


def test_tf32_covers_the_backward_pass_and_is_reset(tmp_path: Path) -> None:
    seen: list[str] = []
    run = trainer(tmp_path, steps=1, precision="tf32", validate_every=0)
    for p in run.task.parameters():
        p.register_hook(lambda _: seen.append(torch.get_float32_matmul_precision()))
    run.run()
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_previews_use_the_precision_of_training(tmp_path: Path) -> None:
    seen: list[bool] = []

    def preview(_: object) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled())
        return torch.zeros(3, 4, 4)

    run = trainer(tmp_path, steps=1, preview_every=1, validate_every=0, precision="bfloat16", device="cpu")
    run.preview = preview
    run.run()
    assert seen == [True, True]


def test_validation_is_at_fixed_times_and_the_same_after_resume(tmp_path: Path) -> None:
    whole, parts = trainer(tmp_path / "whole", validate_every=8), trainer(tmp_path / "parts", validate_every=8)
    whole.run()
    parts.run(until=10)
    resumed = trainer(tmp_path / "parts", validate_every=8)
    resumed.monitor.validations.append(12, raw={}, ema={})  # what a killed run wrote after its last checkpoint
    resumed.run()
    lines = whole.monitor.validations.read()
    assert lines == resumed.monitor.validations.read()
    assert [line["step"] for line in lines] == [8, 16, 24]
    assert list(lines[0]["ema"]) == ["t=0.1", "t=0.3", "t=0.5", "t=0.7", "t=0.9", "mean"]
    assert lines[-1]["ema"]["mean"] < lines[0]["ema"]["mean"]


def test_validation_uses_the_time_it_reports() -> None:
    awakened = awake(task())  # initially all predictions are zero
    assert awakened.validation_set is not None
    x, captions = awakened.validation_set.data.x, awakened.validation_set.captions
    with torch.no_grad():
        rng = tm.RandomStreams.derive(awakened.validation_set.data.seed, 0, len(x))
        by_hand = awakened.model.loss(x, rng, awakened.encoder(captions), FixedTime(0.5, 0.5)).mean().item()
    assert awakened.validate()["t=0.5"] == pytest.approx(by_hand)
    assert awakened.validate()["t=0.1"] != pytest.approx(by_hand)


@pytest.mark.parametrize("dropout", [0.0, 0.3, 1.0])
def test_caption_dropout_is_the_fraction_of_null_captions(dropout: float) -> None:
    whole = task()
    some = GeneratorTask(whole.model, whole.encoder, whole.training_set, caption_dropout=dropout)
    seen: list[str] = []
    some.encoder.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0]))
    with torch.no_grad():
        some.loss(0, 2000, 0, 1)
    assert seen.count("") / len(seen) == pytest.approx(dropout, abs=0.05 if 0 < dropout < 1 else 0)


def test_validation_of_a_grid_is_at_its_times() -> None:
    assert tm.Grid.uniform(4).nearest(0.6) == tm.Grid.uniform(4).nearest(0.5)
    t, t_next = tm.Grid.uniform(4).nearest(0.9).sample(tm.RandomStreams(range(3)))
    assert (t.tolist(), t_next.tolist()) == ([0.75] * 3, [1.0] * 3)
    t, t_next = tm.Continuous().nearest(0.9).sample(tm.RandomStreams(range(3)))
    assert t.tolist() == t_next.tolist() == pytest.approx([0.9] * 3)


@pytest.mark.parametrize("kind", [tm.DiT, tm.Llama])
def test_gradient_checkpointing_keeps_the_gradients(kind: type[tm.DiT | tm.Llama]) -> None:
    plain, saving = (kind(SHAPE[-1], 24, 2, 2, condition_width=8, checkpointing=on) for on in (False, True))
    saving.load_state_dict(awake(plain).state_dict())
    t = torch.tensor([0.1, 0.5, 0.9]) if plain.timed else None
    grads, calls = [], []
    for backbone in (plain, saving):
        calls.append(0)
        backbone.blocks[0].mlp_norm.register_forward_hook(lambda *_: calls.append(calls.pop() + 1))
        h = backbone(tm.RandomStreams(range(3)).normal(*SHAPE), t, condition(3), prefix=0)
        grads.append(torch.autograd.grad(h.square().sum(), list(backbone.parameters())))
    assert calls == [1, 2], "the block is recomputed for its gradient"
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_compiled_networks_have_the_same_gradients(tmp_path: Path) -> None:
    plain, compiled = trainer(tmp_path / "plain"), trainer(tmp_path / "compiled", compile=True)
    for run in (plain, compiled):
        awake(run.task)  # initially all predictions are zero
    assert plain.update() == pytest.approx(compiled.update(), rel=1e-4)
    moments = [run._state()["optimizer"] for run in (plain, compiled)]  # after one step, multiples of the gradient
    assert all(moment.any() for key, moment in moments[0].items() if key.endswith("exp_avg"))
    torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-7)
    assert set(plain.task.state_dict()) == set(compiled.task.state_dict())


def test_bfloat16_is_close_and_keeps_float32_weights(tmp_path: Path) -> None:
    plain, half = trainer(tmp_path / "plain"), trainer(tmp_path / "half", precision="bfloat16")
    one, other = ([run.update() for _ in range(5)][-1] for run in (plain, half))  # initially all predictions are zero
    assert one != other
    assert one == pytest.approx(other, rel=0.02)
    assert all(p.dtype == torch.float32 for p in half.task.parameters())


def test_the_number_of_steps_may_change_until_the_learning_rate_decays(tmp_path: Path) -> None:
    trainer(tmp_path, steps=20, cooldown=0.5).run(until=8)
    longer = trainer(tmp_path, steps=30, cooldown=0.5)
    longer.run(until=20)
    with pytest.raises(ValueError, match="learning rate has started to decay"):
        trainer(tmp_path, steps=20, cooldown=0.5).resume()


def test_a_missing_device_raises() -> None:
    missing = "cuda" if not torch.cuda.is_available() else "mps"
    with pytest.raises(ValueError, match=f"'{missing}' is not available"):
        TrainConfig(steps=1, device=missing).resolve_device()


def test_replicas_require_fsdp_and_divide_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="requires sharded weights"):
        TrainConfig(steps=1, replicas=2)
    config = TrainConfig(steps=1, batch_size=12, parallel="fsdp", replicas=2)
    assert config.parts() == 1
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes are not divisible into 2"):
        config.parts()
