"""What a run can be told: to look, to compile, to save memory, to compute in bfloat16."""

import sys
from pathlib import Path

import pytest
import torch
from laws import SHAPE, awake, condition

import tmatch as tm
from tmatch.times import FixedTime
from tmatch.train import GeneratorTask, TrainConfig, Trainer

sys.path.insert(0, str(Path(__file__).parent))
from small_run import task, trainer


def test_looking_changes_nothing(tmp_path: Path) -> None:
    quiet = trainer(tmp_path / "quiet", steps=6, validate_every=0)
    looking = Trainer(
        task(),
        TrainConfig(
            steps=6, batch_size=8, warmup=5, checkpoint_every=2, validate_every=2, preview_every=3, tensorboard=True
        ),
        tmp_path / "looking",
        preview=lambda task: torch.zeros(3, 4, 4),
    )
    assert quiet.run()
    assert looking.run()
    for a, b in zip(quiet.task.parameters(), looking.task.parameters(), strict=True):
        assert torch.equal(a, b)
    names = {file.name for file in (tmp_path / "looking" / "previews").iterdir()}
    assert names == {f"step-0000000{k}-{weights}.png" for k in (3, 6) for weights in ("raw", "ema")}
    assert list((tmp_path / "looking" / "tensorboard").iterdir())
    assert not (tmp_path / "quiet" / "validation.jsonl").exists()


def test_a_run_in_tf32_multiplies_so_both_ways_and_sets_it_back(tmp_path: Path) -> None:
    seen: list[str] = []
    run = trainer(tmp_path, steps=1, precision="tf32", validate_every=0)
    for p in run.task.parameters():
        p.register_hook(lambda _: seen.append(torch.get_float32_matmul_precision()))
    assert run.run()
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_images_are_drawn_in_the_precision_of_training(tmp_path: Path) -> None:
    seen: list[bool] = []

    def preview(_: object) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled())
        return torch.zeros(3, 4, 4)

    config = TrainConfig(steps=1, batch_size=8, preview_every=1, validate_every=0, precision="bfloat16", device="cpu")
    Trainer(task(), config, tmp_path, preview=preview).run()
    assert seen == [True, True]


def test_validation_is_at_fixed_times_and_a_resumed_run_tells_the_same(tmp_path: Path) -> None:
    whole, parts = trainer(tmp_path / "whole", validate_every=4), trainer(tmp_path / "parts", validate_every=4)
    whole.run()
    parts.run(until=10)
    resumed = trainer(tmp_path / "parts", validate_every=4)
    resumed.monitor.validations.append(12, raw={}, ema={})  # what a killed run wrote after its last checkpoint
    resumed.run()
    lines = whole.monitor.validations.read()
    assert lines == resumed.monitor.validations.read()
    assert [line["step"] for line in lines] == list(range(4, 41, 4))
    assert list(lines[0]["ema"]) == ["t=0.1", "t=0.3", "t=0.5", "t=0.7", "t=0.9", "mean"]
    assert lines[-1]["ema"]["mean"] < lines[0]["ema"]["mean"]


def test_validation_measures_at_the_time_it_names() -> None:
    locked = task()
    awake(locked)  # at first every prediction is zero, whatever the time
    assert locked.validation_set is not None
    x, captions = locked.validation_set.data.x, locked.validation_set.captions
    with torch.no_grad():
        rng = tm.RandomStreams.derive(locked.validation_set.data.seed, 0, len(x))
        by_hand = locked.model.loss(x, rng, locked.encoder(captions), FixedTime(0.5, 0.5)).mean().item()
    assert locked.validate()["t=0.5"] == pytest.approx(by_hand)
    assert locked.validate()["t=0.1"] != pytest.approx(by_hand)


@pytest.mark.parametrize(("drop", "share"), [(0.0, 0.0), (0.3, 0.3), (1.0, 1.0)])
def test_captions_are_dropped_as_often_as_asked(drop: float, share: float) -> None:
    whole = task()
    some = GeneratorTask(whole.model, whole.encoder, whole.training_set, drop=drop)
    seen: list[str] = []
    some.encoder.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0]))
    with torch.no_grad():
        some.loss(0, 2000, 0, 1)
    assert seen.count("") / len(seen) == pytest.approx(share, abs=0.05 if 0 < share < 1 else 0)


def test_validation_of_a_grid_is_at_its_own_times() -> None:
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
    assert calls == [1, 2], "the block is computed again for its gradient"
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_compiling_changes_rounding_only(tmp_path: Path) -> None:
    plain, compiled = trainer(tmp_path / "plain"), trainer(tmp_path / "compiled", compile=True)
    for run in (plain, compiled):
        awake(run.task)  # at first every prediction is zero, compiled or not
    assert plain.update() == pytest.approx(compiled.update(), rel=1e-4)
    moments = [run._state()["optimizer"] for run in (plain, compiled)]  # after one step, multiples of the gradient
    assert all(fixed_time.any() for key, fixed_time in moments[0].items() if key.endswith("exp_avg"))
    torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-7)
    assert set(plain.task.state_dict()) == set(compiled.task.state_dict())


def test_bfloat16_is_close_and_keeps_float32_weights(tmp_path: Path) -> None:
    plain, half = trainer(tmp_path / "plain"), trainer(tmp_path / "half", precision="bfloat16")
    one, other = ([run.update() for _ in range(5)][-1] for run in (plain, half))  # the first starts at zero
    assert one != other
    assert one == pytest.approx(other, rel=0.02)
    assert all(p.dtype == torch.float32 for p in half.task.parameters())


def test_a_run_may_become_longer_until_its_rate_falls(tmp_path: Path) -> None:
    trainer(tmp_path, steps=20, cooldown=0.5).run(until=8)
    longer = trainer(tmp_path, steps=30, cooldown=0.5)
    assert longer.run(until=20)
    with pytest.raises(ValueError, match="a run with another steps"):
        trainer(tmp_path, steps=20, cooldown=0.5).resume()


def test_a_device_that_is_not_there_is_refused() -> None:
    missing = "cuda" if not torch.cuda.is_available() else "mps"
    with pytest.raises(ValueError, match=f"This machine has no '{missing}' device"):
        TrainConfig(steps=1, device=missing).resolve_device()


def test_replicas_are_of_sharded_weights_and_divide_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"train\.replicas is for sharded weights"):
        TrainConfig(steps=1, replicas=2)
    config = TrainConfig(steps=1, batch_size=12, parallel="fsdp", replicas=2)
    assert config.parts() == 1  # planned here for a cluster
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"3 processes do not divide into 2 train\.replicas"):
        config.parts()
