import errno
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from pydantic import Field, ValidationError

from tmatch import files
from tmatch.config import FREE, Config, default_settings, free_keys
from tmatch.data import InMemory
from tmatch.train import Captioned, Interrupted, TrainConfig, Trainer, checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from small_run import STEPS, main, processes, task, trainer


def assert_same_bits(first: Trainer, second: Trainer) -> None:
    for one, other in ((first.task, second.task), (first.ema, second.ema)):
        for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
    assert first.monitor.losses.read() == second.monitor.losses.read()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    torch.set_num_threads(1)
    run = trainer(tmp_path_factory.mktemp("undisturbed"))
    run.run()
    return run


def test_it_learns(undisturbed: Trainer) -> None:
    assert len(undisturbed.monitor.losses.read()) == STEPS
    assert undisturbed.task.validate()["mean"] < task().validate()["mean"]


@pytest.mark.parametrize("stop", [1, 7, STEPS - 1])
def test_a_resumed_run_has_the_same_bits(undisturbed: Trainer, stop: int, tmp_path: Path) -> None:
    trainer(tmp_path).run(until=stop)
    resumed = trainer(tmp_path)
    resumed.run()
    assert_same_bits(resumed, undisturbed)


def test_steps_after_the_last_checkpoint_are_repeated(undisturbed: Trainer, tmp_path: Path) -> None:
    lost = trainer(tmp_path, checkpoint_every=100)
    lost.resume()
    for _ in range(3):
        lost.monitor.losses.append(lost.step + 1, loss=lost.update())  # steps after the last checkpoint
    resumed = trainer(tmp_path)
    resumed.run()
    assert_same_bits(resumed, undisturbed)


@pytest.mark.parametrize("count", [4, 15, 29, 44, 58])
def test_kill_9_changes_nothing(undisturbed: Trainer, count: int, tmp_path: Path) -> None:
    """A run that is killed at any operation on its files, twice, resumes to the same bits."""
    for operations in (count, count + 7):
        process = processes().Process(target=main, args=(tmp_path, {"dies_at_file_operation": operations}))
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
    final = trainer(tmp_path)
    final.run()
    assert_same_bits(final, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_finishes_its_step_saves_and_resumes(
    number: signal.Signals, undisturbed: Trainer, tmp_path: Path
) -> None:
    run, before = trainer(tmp_path, checkpoint_every=1000), signal.getsignal(number)
    update = run.update

    def interrupt_in_the_middle() -> float:
        if run.step == 6:
            signal.raise_signal(number)
        return update()

    run.update = interrupt_in_the_middle  # type: ignore[method-assign]
    with pytest.raises(Interrupted) as interrupted:
        run.run()
    assert interrupted.value.preempted == (number == signal.SIGTERM)
    assert run.step == 7
    resumed = trainer(tmp_path)
    resumed.run()
    assert_same_bits(resumed, undisturbed)
    assert signal.getsignal(number) is before


def test_free_settings_may_change(tmp_path: Path) -> None:
    trainer(tmp_path, device="auto").run(until=3)
    moved = trainer(tmp_path, device="cpu", gradient_accumulation_steps=2, checkpoint_every=3)
    moved.resume()
    assert moved.step == 3
    assert moved.ema.training_set is moved.task.training_set, "the data are not copied"
    with pytest.raises(ValueError, match="contains a run of 3 steps"):
        trainer(tmp_path, steps=2).run()


def test_a_run_that_stops_between_saving_and_validation_validates_on_resume(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", steps=4, validate_every=2)
    whole.run()
    stopped = trainer(tmp_path / "cut", steps=4, validate_every=2)
    stopped._evaluate = lambda validate, preview: sys.exit() if validate else None  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        stopped.run()
    again = trainer(tmp_path / "cut", steps=4, validate_every=2)
    again.resume()
    assert again.step == 2
    again.run()
    trainer(tmp_path / "cut", steps=4, validate_every=2).run()  # and only once
    assert [line["step"] for line in again.monitor.validations.read()] == [2, 4]
    assert again.monitor.validations.read() == whole.monitor.validations.read()


def test_validation_in_batches_equals_validation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = task(awake=True).validate()
    monkeypatch.setattr("tmatch.train.generator.VALIDATION_BATCH_SIZE", 4)
    assert task(awake=True).validate() == pytest.approx(measured, rel=1e-5)


def test_the_learning_rate_warms_up_stays_and_decays() -> None:
    config = TrainConfig(steps=100, warmup=10, cooldown=0.2, learning_rate=1.0)
    rates = [config.learning_rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:80] == [1.0] * 70
    assert rates[99] == pytest.approx(0.05)


def test_a_failed_write_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoint.save(tmp_path, 1, {"model": {"w": torch.ones(3)}}, {})

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", disk_full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, {"model": {"w": torch.zeros(3)}}, {})
    assert checkpoint.latest(tmp_path) == first
    assert torch.equal(checkpoint.load(first, "model")["w"], torch.ones(3))
    assert checkpoint.record(first)["step"] == 1


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But also folders with similar names, and checkpoints that cannot be removed yet."""

    def names_after(*steps: int) -> list[str]:
        for step in steps:
            checkpoint.save(tmp_path, step, {"model": {"w": torch.ones(1)}}, {})
        return sorted(path.name for path in tmp_path.iterdir())

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    (tmp_path / "step-0-mine").mkdir()
    assert names_after(0, 1, 2) == ["step-0-mine", "step-00000001", "step-00000002"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        assert "step-00000001" in names_after(3)
    assert names_after(4) == ["step-0-mine", "step-00000003", "step-00000004"]


def test_a_rerun_completes_an_interrupted_removal(tmp_path: Path) -> None:
    """A run that was killed after its last checkpoint, while it removed an older one, leaves nothing behind."""
    trainer(tmp_path, checkpoint_every=1).run(until=3)
    (tmp_path / "step-00000001").mkdir()
    trainer(tmp_path, checkpoint_every=1).resume()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000002", "step-00000003"]


def test_other_runs_do_not_resume(tmp_path: Path) -> None:
    trainer(tmp_path).run(until=2)
    with pytest.raises(ValueError, match="another learning_rate and seed; choose a new folder"):
        trainer(tmp_path, learning_rate=0.5, seed=3).resume()
    other = Trainer(task("fm"), trainer(tmp_path).config, tmp_path)
    with pytest.raises(ValueError, match="has another architecture"):
        other.resume()


def test_bad_settings_raise(tmp_path: Path) -> None:
    for wrong in ({"learning_rat": 1e-3}, {"steps": 0}, {"batch_size": "many"}, {"ema_decay": 1.0}):
        with pytest.raises(ValidationError):
            TrainConfig(**{"steps": 5, **wrong})
    with pytest.raises(ValueError, match="batch_size 8 is not divisible into 3 parts"):
        trainer(tmp_path, gradient_accumulation_steps=3)


def test_the_averaged_weights_follow_their_equation(tmp_path: Path) -> None:
    run = trainer(tmp_path, ema_decay=0.9)
    expected = [p.clone() for p in run.ema.parameters()]
    for step in range(12):
        run.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = [decay * e + (1 - decay) * p.detach() for e, p in zip(expected, run.task.parameters(), strict=True)]
    for average, by_hand in zip(run.ema.parameters(), expected, strict=True):
        torch.testing.assert_close(average, by_hand)


@pytest.mark.parametrize("parts", [1, 4])
def test_an_update_is_a_clipped_step_of_adamw(tmp_path: Path, parts: int) -> None:
    """Three steps written out (Loshchilov and Hutter, 2019), for the weights of backbone, head and text encoder."""
    rate, decay, (b_1, b_2), limit = 0.01, 0.3, (0.7, 0.9), 0.05
    settings = {"learning_rate": rate, "weight_decay": decay, "betas": (b_1, b_2), "max_grad_norm": limit, "warmup": 5}
    run = trainer(tmp_path, awake=True, gradient_accumulation_steps=parts, **settings)
    weights, names = list(run.task.parameters()), [name for name, _ in run.task.named_parameters()]
    assert {name.split(".")[0] for name in names} == {"model", "encoder"}
    assert any(".head." in name for name in names)
    by_hand = [w.detach().clone() for w in weights]
    m, v = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for step in range(3):
        assert all(w.grad is None for w in weights)
        gradients = torch.autograd.grad(run.task.loss(step, 8, 0, 1), weights)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        assert norm > 2 * limit
        for k, g in enumerate(limit / norm * g for g in gradients):
            m[k], v[k] = b_1 * m[k] + (1 - b_1) * g, b_2 * v[k] + (1 - b_2) * g**2
            m_hat, v_hat = m[k] / (1 - b_1 ** (step + 1)), v[k] / (1 - b_2 ** (step + 1))
            step_size = rate * (step + 1) / 5  # warm-up
            by_hand[k] = by_hand[k] - step_size * (m_hat / (v_hat.sqrt() + 1e-8) + decay * by_hand[k])
        run.update()
        for name, w, expected in zip(names, weights, by_hand, strict=True):
            torch.testing.assert_close(w.detach(), expected, atol=2e-5, rtol=1e-4, msg=name)


def test_every_step_has_noise_of_its_own() -> None:
    """Also for the same image and caption."""
    one = task(awake=True)
    one.training_set = Captioned(InMemory(one.training_set.data.x[:1], seed=5), ["zero"])
    losses = [one.loss(step, 1, 0, 1).item() for step in range(20)]
    assert len(set(losses)) == 20


def test_the_average_is_validated_beside_the_weights(tmp_path: Path) -> None:
    run = trainer(tmp_path, awake=True, steps=6, validate_every=6)
    run.run()
    (line,) = run.monitor.validations.read()
    assert line["raw"] == pytest.approx(run.task.validate())
    assert line["ema"] == pytest.approx(run.ema.validate())
    assert line["raw"] != line["ema"]


def test_accumulated_gradients_equal_those_of_the_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before clipping, which would hide their scale."""
    seen: list[list[torch.Tensor]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def record(parameters: Iterable[torch.nn.Parameter], norm: float) -> torch.Tensor:
        kept = list(parameters)
        seen.append([p.grad.clone() for p in kept if p.grad is not None])
        return clip(kept, norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", record)
    one, four = trainer(tmp_path / "one").update(), trainer(tmp_path / "four", gradient_accumulation_steps=4).update()
    assert one == pytest.approx(four, rel=1e-5)
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("every", [1, 1000])
@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_a_diverged_run_stops_with_finite_checkpoints(rate: float, every: int, tmp_path: Path) -> None:
    """The rate 3e38 makes weights infinite in a step with a finite loss."""
    run = trainer(tmp_path, learning_rate=rate, warmup=0, checkpoint_every=every, validate_every=1)
    with pytest.raises(ValueError, match=r"diverged at step \d+ .*lower train.learning_rate"):
        run.run()
    assert not run.task.training_set.data.x.isnan().any(), "the data are not to blame"
    newest = checkpoint.latest(tmp_path)
    groups = ("model", "ema", "optimizer") if newest is not None else ()
    assert newest is None or all(x.isfinite().all() for g in groups for x in checkpoint.load(newest, g).values())


def test_a_folder_is_trained_by_one_run_at_a_time(tmp_path: Path) -> None:
    rejected: list[int] = []

    class Busy(Trainer):
        def update(self) -> float:
            with pytest.raises(ValueError, match="in use by another process"):
                trainer(tmp_path).run(until=2)
            rejected.append(self.step)
            return super().update()

    config = TrainConfig(steps=2, batch_size=8, warmup=5, validate_every=0)
    Busy(task(), config, tmp_path).run()
    assert rejected == [0, 1]
    with pytest.raises(ValueError, match="another learning_rate"):
        trainer(tmp_path, steps=2, learning_rate=0.5).run()
    trainer(tmp_path, steps=2).run()  # the folder is unlocked, after an error too


def test_a_setting_that_one_side_lacks_counts_as_its_default(tmp_path: Path) -> None:
    """As after an update that adds or removes a setting."""
    trainer(tmp_path, weight_decay=0.1).run(until=2)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    record = json.loads((newest / "record.json").read_text())
    assert record["format"] == 2

    def resume(settings: dict[str, object], **changes: object) -> None:
        (newest / "record.json").write_text(json.dumps({**record, "settings": settings}))
        trainer(tmp_path, **changes).resume()

    settings = record["settings"]
    resume({key: value for key, value in settings.items() if key != "cooldown"}, weight_decay=0.1)
    with pytest.raises(ValueError, match="another weight_decay"):
        resume({key: value for key, value in settings.items() if key != "weight_decay"}, weight_decay=0.1)
    with pytest.raises(ValueError, match="another momentum"):
        resume({**settings, "momentum": 0.5}, weight_decay=0.1)


def test_nested_fields_declare_whether_they_block_resume() -> None:
    class Inner(Config):
        width: int = 1
        cache: int = Field(default=1, json_schema_extra=FREE)

    class Outer(Config):
        inner: Inner = Inner()
        preview: Inner = Field(default=Inner(), json_schema_extra=FREE)

    assert free_keys(Outer()) == {"inner.cache", "preview"}
    assert default_settings(Outer(inner=Inner(width=5)))["inner"] == {"width": 1, "cache": 1}
