"""Overhead of a training step beyond its networks, and its fraction of the matmul rate.

    python benchmarks/train_step.py [--threads 1] [--pixart] [--out docs/results/train_step.json]

Alternates complete steps (data order, captions, words, networks, averaged weights, logs) with bare ones (forward,
backward, clipping and AdamW on a fixed batch). The target is an overhead of at most 5%. FLOPs per second are compared
with a large float32 matrix product, timed in the same turns. `--pixart` also runs `benchmarks/train_dit.py`.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from flops import flops
from torch import nn

import tmatch as tm
from tmatch.codec.saved import SHIPPED
from tmatch.conditioning import CONDITIONERS
from tmatch.data import InMemory, ShapeImages
from tmatch.datasets import ImageData
from tmatch.recipes import RECIPES
from tmatch.rng import seeded_init
from tmatch.runs import RunConfig
from tmatch.train import Captioned, GeneratorTask, Trainer

SIDE = 1024  # size of the matrices


def task_of(recipe: RunConfig) -> GeneratorTask:
    """The recipe's networks, on noise instead of latents or codes."""
    images, rng = ShapeImages(1, 4000), tm.RandomStreams(range(4000))
    codes = prod(SHIPPED[recipe.autoencoder or "shapes"].levels) if recipe.autoencoder == "shapes-codes" else None
    x = rng.normal(4, 4, 16) if codes is None else (rng.uniform(4, 4, 1) * codes).floor()
    assert isinstance(recipe.data, ImageData)
    settings = recipe.data.conditioning(images, recipe.text)
    with seeded_init(recipe.train.seed):
        encoder = CONDITIONERS[settings.pop("kind")](**settings)
        model = recipe.network((4, 4, x.shape[-1]), encoder.width, codes)
    return GeneratorTask(
        model, encoder, Captioned(InMemory(x), images.captions), caption_dropout=recipe.caption_dropout
    )


def bare_step(trainer: Trainer) -> Callable[[], None]:
    """Forward, backward and AdamW on one fixed batch."""
    task, size = trainer.task, trainer.config.batch_size
    x, captions = task.training_set.data.x[:size], task.training_set.captions[:size]
    ids, mask = task.encoder.tokenize(captions)

    def step() -> None:
        task.model.loss(x, tm.RandomStreams.derive(0, 0, size), task.encoder.encode(ids, mask)).mean().backward()
        nn.utils.clip_grad_norm_(task.parameters(), trainer.config.max_grad_norm)
        for optimizer in trainer.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure(recipe: RunConfig, repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(task_of(recipe), recipe.train, Path(folder))
        bare = bare_step(trainer)
        a, b = tm.RandomStreams(range(2)).normal(SIDE, SIDE)
        operations = flops(bare)
        steps = iter(range(1, 10_000))

        def whole() -> None:
            trainer.monitor.loss(next(steps), trainer.update(), 0.0)

        for action in (whole, bare):
            action()
        turns = [(seconds(whole), seconds(bare), seconds(lambda: a @ b)) for _ in range(repeats)]
    total, networks, product = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(whole / bare for whole, bare, _ in turns)
    rate = operations / total
    return {
        "seconds_a_step": round(total, 4),
        "seconds_of_all_steps": round(total * recipe.train.steps),
        "images_a_second": round(recipe.train.batch_size / total, 1),
        "beyond_the_networks": round(1 - 1 / ratio, 4),
        "gflops_a_step": round(operations / 1e9, 2),
        "gflops_a_second": round(rate / 1e9, 1),
        "matmul_gflops_a_second": round(2 * SIDE**3 / product / 1e9, 1),
        "share_of_matmul": round(rate / (2 * SIDE**3 / product), 3),
        "networks_seconds": round(networks, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["shapes-fm", "shapes-dtm", "shapes-dtm-mean"])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pixart", action="store_true", help="also compare the DiT with diffusers' PixArt")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = {name: measure(RECIPES[name](), args.repeats) for name in args.recipes}
    if args.pixart:
        import train_dit  # needs diffusers

        results["dit_against_pixart"] = train_dit.compare(train_dit.Size.of("384x6x77"), repeats=15)
    text = json.dumps(
        {"threads": args.threads, "batch": RECIPES[args.recipes[0]]().train.batch_size, **results}, indent=2
    )
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
