"""A tiny captioned run, for tests that train, kill and resume it; also a program: small_run.py FOLDER [key=value]."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

import tmatch as tm
from tmatch.data import InMemory
from tmatch.text import WordEncoder
from tmatch.train import Captioned, GeneratorTask, TrainConfig, Trainer

STEPS = 40


def task(name: str = "dtm") -> GeneratorTask:
    torch.manual_seed(0)
    x = tm.Noise(range(50)).normal(2, 2, 4)
    backbone = tm.DiT(4, 16, 1, 2, condition_width=16)
    model = tm.build(name, backbone, 4, tm.HeadConfig(16, 1))
    encoder = WordEncoder(["zero", "one"], width=16, heads=2)
    held_out = Captioned(InMemory(tm.Noise(range(50, 56)).normal(2, 2, 4)), ["zero", "one"] * 3)
    return GeneratorTask(model, encoder, Captioned(InMemory(x, seed=5), ["zero", "one"] * 25), held_out)


def trainer(out: Path, name: str = "dtm", **changes: object) -> Trainer:
    settings = {"steps": STEPS, "batch": 8, "warmup": 5, "checkpoint_every": 2, **changes}
    return Trainer(task(name), TrainConfig.model_validate(settings), out)


def die_once(run: Trainer, rank: int, step: int) -> None:
    """Have a process of a run killed after a step, the first time it gets there."""
    update, died = run.update, run.out / "died"

    def fatal() -> float:
        if run.processes.rank == rank and run.step == step and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return update()

    run.update = fatal  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("started", flush=True)
    changes = {key: json.loads(value) for key, _, value in (change.partition("=") for change in sys.argv[2:])}
    dies = changes.pop("dies", None)
    run = trainer(Path(sys.argv[1]), **changes)
    if dies is not None:
        die_once(run, *dies)
    finished = run.run()
    print("finished" if finished else "interrupted", flush=True)
