import errno
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tmatch import files
from tmatch.train import TrainConfig, Trainer, checkpoint

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
    assert run.run()
    return run


def test_it_learns(undisturbed: Trainer) -> None:
    losses = [line["loss"] for line in undisturbed.monitor.losses.read()]
    assert len(losses) == STEPS
    assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize("stop", [1, 7, 20, 39])
def test_a_resumed_run_has_the_same_bits(undisturbed: Trainer, stop: int, tmp_path: Path) -> None:
    trainer(tmp_path).run(until=stop)
    resumed = trainer(tmp_path)
    resumed.run()
    assert_same_bits(resumed, undisturbed)


def test_what_was_done_after_the_last_checkpoint_is_done_again(undisturbed: Trainer, tmp_path: Path) -> None:
    lost = trainer(tmp_path, checkpoint_every=100)
    lost.resume()
    for _ in range(3):
        lost.monitor.losses.append(lost.step + 1, loss=lost.update())  # steps that no checkpoint saw
    resumed = trainer(tmp_path)
    resumed.run()
    assert_same_bits(resumed, undisturbed)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.11, 0.17, 0.23])
def test_kill_9_changes_nothing(undisturbed: Trainer, delay: float, tmp_path: Path) -> None:
    """A checkpoint every other step: many of the moments fall into the writing of one."""
    context = processes()
    for turn in range(2):
        started = context.Event()
        process = context.Process(target=main, args=(tmp_path, {}, started))
        process.start()
        assert started.wait(60)
        time.sleep(delay * (turn + 1))
        process.kill()
        process.join()
        assert turn or process.exitcode == -signal.SIGKILL, "the run was over before it was killed"
    last = context.Process(target=main, args=(tmp_path, {}))
    last.start()
    last.join(120)
    assert last.exitcode == 0
    final = trainer(tmp_path)
    final.resume()
    assert final.step == STEPS
    assert_same_bits(final, undisturbed)


def test_an_interrupted_run_saves_and_goes_on(undisturbed: Trainer, tmp_path: Path) -> None:
    run, before = trainer(tmp_path, checkpoint_every=1000), signal.getsignal(signal.SIGINT)
    update = run.update

    def interrupt_in_the_middle() -> float:
        if run.step == 6:
            signal.raise_signal(signal.SIGINT)
        return update()

    run.update = interrupt_in_the_middle  # type: ignore[method-assign]
    assert not run.run()
    assert run.step == 7, "the step was finished"
    resumed = trainer(tmp_path)
    assert resumed.run()
    assert_same_bits(resumed, undisturbed)
    assert signal.getsignal(signal.SIGINT) is before, "handlers are as they were"


def test_the_average_shares_the_data(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    assert run.ema.training_set is run.task.training_set


def test_more_steps_go_on_unless_the_rate_depends_on_them(tmp_path: Path) -> None:
    trainer(tmp_path / "constant", steps=4).run()
    longer = trainer(tmp_path / "constant", steps=6)
    assert longer.run()
    assert longer.step == 6
    trainer(tmp_path / "falling", steps=4, cooldown=0.5).run()
    with pytest.raises(ValueError, match="a run with another steps"):
        trainer(tmp_path / "falling", steps=6, cooldown=0.5).run()


def test_a_run_goes_on_elsewhere_and_not_with_another_rate(tmp_path: Path) -> None:
    """What changes rounding alone may change; what else changes the weights may not."""
    trainer(tmp_path, device="auto").run(until=3)
    moved = trainer(tmp_path, device="cpu", gradient_accumulation_steps=2, checkpoint_every=3)
    moved.resume()
    assert moved.step == 3
    with pytest.raises(ValueError, match="another learning_rate"):
        trainer(tmp_path, learning_rate=0.5).resume()


def test_a_look_that_fails_is_said_and_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory that runs out while drawing must not end a run, at the same step, each time it is started again."""

    def preview(_: object) -> torch.Tensor:
        newest = checkpoint.latest(tmp_path)
        assert newest is not None, "it was saved before"
        assert newest.name == f"step-{run.step:08d}"
        raise torch.OutOfMemoryError("CUDA out of memory")

    run = trainer(tmp_path, steps=4, preview_every=2)
    run.preview = preview
    assert run.run()
    assert checkpoint.latest(tmp_path) is not None
    assert "step 2 cannot be drawn from and training goes on: CUDA out of memory" in capsys.readouterr().err


def test_a_run_ended_between_saving_and_looking_looks_when_it_goes_on(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", steps=4, validate_every=2)
    assert whole.run()
    truncate = trainer(tmp_path / "cut", steps=4, validate_every=2)
    truncate._evaluate = lambda measure, draw: sys.exit("ended") if measure else None  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        truncate.run()
    again = trainer(tmp_path / "cut", steps=4, validate_every=2)
    again.resume()
    assert again.step == 2
    assert again.run()
    assert trainer(tmp_path / "cut", steps=4, validate_every=2).run(), "and not twice"
    assert [line["step"] for line in again.monitor.validations.read()] == [2, 4]
    assert again.monitor.validations.read() == whole.monitor.validations.read()


def test_validation_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = task(awake=True).validate()
    monkeypatch.setattr("tmatch.train.generator.VALIDATION_BATCH_SIZE", 4)
    assert task(awake=True).validate() == pytest.approx(measured, rel=1e-5)


def test_accumulation_is_the_whole_batch(tmp_path: Path) -> None:
    whole, parts = trainer(tmp_path / "whole"), trainer(tmp_path / "parts", gradient_accumulation_steps=4)
    for run in (whole, parts):
        run.run(until=3)
    for a, b in zip(whole.task.parameters(), parts.task.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_the_rate_rises_stays_and_falls() -> None:
    config = TrainConfig(steps=100, warmup=10, cooldown=0.2, learning_rate=1.0)
    rates = [config.learning_rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:80] == [1.0] * 70
    assert rates[99] == pytest.approx(0.05)


def test_the_average_follows_early_and_smooths_late() -> None:
    config = TrainConfig(steps=100, ema_decay=0.99)
    assert config.ema_decay_at(0) == pytest.approx(0.1)
    assert config.ema_decay_at(10**6) == 0.99


def test_a_crash_while_writing_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoint.save(tmp_path, 1, {"model": {"w": torch.ones(3)}}, {})

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", disk_full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, {"model": {"w": torch.zeros(3)}}, {})
    assert checkpoint.latest(tmp_path) == first
    assert torch.equal(checkpoint.load(first, "model")["w"], torch.ones(3))
    assert checkpoint.record(first)["step"] == 1


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    for step in range(5):
        checkpoint.save(tmp_path, step, {"model": {"w": torch.ones(1)}}, {})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000004"]


def test_bad_checkpoints_are_refused_in_a_sentence(tmp_path: Path) -> None:
    trainer(tmp_path).run(until=2)
    with pytest.raises(ValueError, match="a run with another learning_rate and seed; give a new folder"):
        trainer(tmp_path, learning_rate=0.5, seed=3).resume()
    other = Trainer(task("fm"), trainer(tmp_path).config, tmp_path)
    with pytest.raises(ValueError, match="has another architecture"):
        other.resume()
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match="is damaged"):
        trainer(tmp_path).resume()
    (newest / "record.json").unlink()
    with pytest.raises(ValueError, match="is not a checkpoint"):
        trainer(tmp_path).resume()


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    for wrong in ({"learning_rat": 1e-3}, {"steps": 0}, {"batch_size": "many"}, {"ema_decay": 1.0}):
        with pytest.raises(ValidationError):
            TrainConfig(**{"steps": 5, **wrong})
    with pytest.raises(ValueError, match="batch of 8 does not divide into 3 parts"):
        trainer(tmp_path, gradient_accumulation_steps=3)


def test_the_average_is_the_average(tmp_path: Path) -> None:
    run = trainer(tmp_path, ema_decay=0.9)
    expected = [p.clone() for p in run.ema.parameters()]
    for step in range(12):
        run.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = [decay * e + (1 - decay) * p.detach() for e, p in zip(expected, run.task.parameters(), strict=True)]
    for average, by_hand in zip(run.ema.parameters(), expected, strict=True):
        torch.testing.assert_close(average, by_hand)


def test_accumulation_has_the_gradient_of_the_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is clipped, which would hide its scale."""
    seen: list[list[torch.Tensor]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def look(parameters: Iterable[torch.nn.Parameter], norm: float) -> torch.Tensor:
        kept = list(parameters)
        seen.append([p.grad.clone() for p in kept if p.grad is not None])
        return clip(kept, norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", look)
    one, four = trainer(tmp_path / "one").update(), trainer(tmp_path / "four", gradient_accumulation_steps=4).update()
    assert one == pytest.approx(four, rel=1e-5)
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_a_diverged_run_stops_before_it_spoils_anything(tmp_path: Path) -> None:
    run = trainer(tmp_path, learning_rate=1e30, warmup=0, checkpoint_every=1)
    with pytest.raises(ValueError, match=r"diverged at step \d+ .*lower train.learning_rate"):
        run.run()
    newest = checkpoint.latest(tmp_path)
    groups = ("model", "ema", "optimizer") if newest is not None else ()
    assert newest is None or all(x.isfinite().all() for g in groups for x in checkpoint.load(newest, g).values())


def test_an_old_checkpoint_that_cannot_be_removed_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network disk, while somebody reads a file of it."""

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    run = trainer(tmp_path)
    run.run(until=4)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        run.run(until=8)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000008"
    assert (tmp_path / "step-00000002").exists()
    run.run(until=10)
    assert not (tmp_path / "step-00000002").exists()


def test_folders_that_are_not_ours_stay(tmp_path: Path) -> None:
    (tmp_path / "step-0-mine").mkdir()
    (tmp_path / "step-0-mine" / "notes.txt").write_text("mine")
    trainer(tmp_path).run(until=6)
    assert (tmp_path / "step-0-mine" / "notes.txt").read_text() == "mine"
    assert trainer(tmp_path).run(until=8)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "model.safetensors", "record.json"])
def test_a_checkpoint_with_a_part_missing_is_refused(name: str, tmp_path: Path) -> None:
    trainer(tmp_path).run(until=2)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    if name == "record.json":
        (newest / name).write_text("{}")
    else:
        (newest / name).unlink()
    with pytest.raises(ValueError, match="is damaged"):
        trainer(tmp_path).resume()


def test_a_run_cannot_become_shorter_than_it_is(tmp_path: Path) -> None:
    trainer(tmp_path, steps=4).run()
    with pytest.raises(ValueError, match="has taken 4 steps already"):
        trainer(tmp_path, steps=2).run()


def test_a_folder_is_trained_by_one_run_at_a_time(tmp_path: Path) -> None:
    refused: list[str] = []

    class Second(Trainer):
        def update(self) -> float:
            with pytest.raises(
                ValueError, match="being trained by another process; wait for it, or give a new"
            ) as said:
                trainer(tmp_path).run(until=2)
            refused.append(str(said.value))
            return super().update()

    config = TrainConfig(steps=4, batch_size=8, warmup=5, checkpoint_every=2, validate_every=0)
    assert Second(task(), config, tmp_path).run()
    assert len(refused) == 4
    with pytest.raises(ValueError, match="another learning_rate"):
        trainer(tmp_path, steps=4, learning_rate=0.5).run()
    assert trainer(tmp_path, steps=4).run()  # when it is done, the folder is free, and after one that was refused
