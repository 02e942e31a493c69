"""A tiny captioned run, for tests that train, kill and resume it; also a program: small_run.py FOLDER [key=value].

In a process of its own it starts from a server that has imported torch already, which takes longer than the run.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

import tmatch as tm
from tmatch.conditioning import WordEncoder
from tmatch.data import InMemory
from tmatch.train import Captioned, GeneratorTask, TrainConfig, Trainer, checkpoint

STEPS = 40
_PRELOADED = ["tmatch.train", "torch.distributed.fsdp", "torch.distributed.launcher.api", "torch._dynamo"]


def task(name: str = "dtm", awake: bool = False) -> GeneratorTask:
    torch.manual_seed(0)
    x = tm.RandomStreams(range(50)).normal(2, 3, 4)  # tokens enough for captions to take in projections
    backbone = tm.DiT(4, 16, 1, 2, condition_width=16)
    model = tm.build(name, backbone, 4, tm.HeadConfig(16, 1))
    encoder = WordEncoder(["zero", "one"], width=16, heads=2)
    for p in model.parameters() if awake else ():  # at first every prediction is zero
        p.data.add_(0.1 * torch.randn(p.shape))
    held_out = Captioned(InMemory(tm.RandomStreams(range(50, 56)).normal(2, 3, 4)), ["zero", "one"] * 3)
    return GeneratorTask(model, encoder, Captioned(InMemory(x, seed=5), ["zero", "one"] * 25), held_out)


def trainer(out: Path, name: str = "dtm", awake: bool = False, **changes: object) -> Trainer:
    settings = {"steps": STEPS, "batch_size": 8, "warmup": 5, "checkpoint_every": 2, **changes}
    return Trainer(task(name, awake), TrainConfig.model_validate(settings), out)


def die_once(run: Trainer, rank: int, step: int) -> None:
    """Have a process of a run killed after a step, the first time it gets there."""
    update, died = run.update, run.out / "died"

    def fatal() -> float:
        if run.distributed.rank == rank and run.step == step and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return update()

    run.update = fatal  # type: ignore[method-assign]


def look_slowly(run: Trainer, patience: float) -> None:
    """Have a run draw for longer than processes wait for each other, and fail at the averaged weights."""
    drawn: list[int] = []

    def preview(task: object) -> torch.Tensor:
        newest = checkpoint.latest(run.out)
        assert newest is not None, "it was saved before"
        assert newest.name == f"step-{run.step:08d}"
        drawn.append(run.step)
        if len(drawn) % 2 == 0:
            raise torch.OutOfMemoryError("no memory left")
        time.sleep(2 * patience)
        return torch.zeros(3, 4, 4)

    run.preview = preview


def main(out: Path, changes: dict[str, object], started: Event | None = None) -> None:
    """The run to its end; `dies` is the rank and the step at which it is killed once.

    `patience` is how many seconds processes wait for each other, half as long as the run's images take.
    """
    torch.set_num_threads(1)
    patience = changes.get("patience")
    if isinstance(patience, float):
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=patience))
    run = trainer(out, **{key: value for key, value in changes.items() if key not in ("dies", "patience")})
    if isinstance(patience, float):
        look_slowly(run, patience)
    if "dies" in changes:
        die_once(run, *changes["dies"])  # type: ignore[misc]
    if started is not None:
        started.set()
    assert run.run()


def processes() -> multiprocessing.context.ForkServerContext:
    """Processes that start at once: each is a copy of one that has done nothing but import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


if __name__ == "__main__":
    settings = (change.partition("=") for change in sys.argv[2:])
    main(Path(sys.argv[1]), {key: json.loads(value) for key, _, value in settings})
