"""A tiny captioned run, for tests that train, kill and resume it; also a program: small_run.py FOLDER [key=value].

Processes fork from a server that has imported torch, since the import takes longer than the run.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

import tmatch as tm
from tmatch.conditioning import WordEncoder
from tmatch.data import InMemory
from tmatch.train import Captioned, GeneratorTask, TrainConfig, Trainer, checkpoint

STEPS = 24
_PRELOADED = ["tmatch.train", "tmatch.train.parallel", "tmatch.conditioning", "tmatch.variants", "torch._dynamo"]


def task(name: str = "dtm", awake: bool = False) -> GeneratorTask:
    torch.manual_seed(0)
    x = tm.RandomStreams(range(50)).normal(2, 3, 4)  # enough tokens for cross-attention to fold its projections
    backbone = tm.DiT(4, 16, 1, 2, condition_width=16)
    model = tm.build(name, backbone, 4, tm.HeadConfig(width=16, depth=1))
    encoder = WordEncoder(["zero", "one"], width=16, heads=2)
    for p in model.parameters() if awake else ():  # initially all predictions are zero
        p.data.add_(0.1 * torch.randn(p.shape))
    held_out = Captioned(InMemory(tm.RandomStreams(range(50, 56)).normal(2, 3, 4)), ["zero", "one"] * 3)
    return GeneratorTask(model, encoder, Captioned(InMemory(x, seed=5), ["zero", "one"] * 25), held_out)


def trainer(out: Path, name: str = "dtm", awake: bool = False, **changes: object) -> Trainer:
    settings = {"steps": STEPS, "batch_size": 8, "warmup": 5, "checkpoint_every": 2, **changes}
    return Trainer(task(name, awake), TrainConfig.model_validate(settings), out)


def die_once(run: Trainer, rank: int, step: int) -> None:
    """Kill a process of a run after a step, the first time it gets there."""
    update, died = run.update, run.out / "died"

    def fatal() -> float:
        if run.distributed.rank == rank and run.step == step and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return update()

    run.update = fatal  # type: ignore[method-assign]


def die_at_file_operation(out: Path, count: int) -> None:
    """Kill this process before its `count`-th operation on files of a run."""
    left = [count]

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") and str(out) in str(args[0]):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def preview_slowly(run: Trainer, timeout: float) -> None:
    """Make previews take longer than the timeout of collectives, and fail with the averaged weights."""
    made: list[int] = []

    def preview(task: object) -> torch.Tensor:
        newest = checkpoint.latest(run.out)
        assert newest is not None, "the checkpoint is complete before"
        assert newest.name == f"step-{run.step:08d}"
        made.append(run.step)
        if len(made) % 2 == 0:
            raise torch.OutOfMemoryError("no memory left")
        time.sleep(1.2 * timeout)
        return torch.zeros(3, 4, 4)

    run.preview = preview


def main(out: Path, changes: dict[str, object], rank: int = 0, world: int = 1, timeout: float = 600) -> None:
    """Train to the end, as one of several processes; `dies` and `dies_at_file_operation` say when to be killed."""
    torch.set_num_threads(1)
    if world > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        torch.distributed.init_process_group(
            "gloo", (out / "store").as_uri(), timedelta(seconds=timeout), rank=rank, world_size=world
        )
    settings = {key: value for key, value in changes.items() if not key.startswith("dies")}
    run = trainer(out, **settings)  # type: ignore[arg-type]
    if timeout < 600:
        preview_slowly(run, timeout)
    if "dies" in changes:
        die_once(run, *changes["dies"])  # type: ignore[misc]
    if "dies_at_file_operation" in changes:
        die_at_file_operation(out, changes["dies_at_file_operation"])  # type: ignore[arg-type]
    run.run()


def processes() -> multiprocessing.context.ForkServerContext:
    """Return a context whose processes fork from a server that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


if __name__ == "__main__":
    pairs = (change.partition("=") for change in sys.argv[2:])
    main(Path(sys.argv[1]), {key: json.loads(value) for key, _, value in pairs})
