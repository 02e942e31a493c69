"""Training on CPU cores: one core, one process with several threads, or one process per core.

    python benchmarks/cpu_processes.py [--cores 2] [--recipes shapes-fm shapes-artm-3]
        [--out docs/results/cpu_processes.json]

Threads synchronize in every operation of a network, processes once per step, when gradients are averaged. Each setup
is started several times, alternating with the others, and runs full `Trainer` steps on noise instead of latents. The
batch size is that of the recipe, over all processes. Ratios are medians. Waiting threads sleep, as `tmatch` sets them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from train_step import seconds, task_of

from tmatch.recipes import RECIPES
from tmatch.train import Trainer


def ways(cores: int) -> dict[str, tuple[int, int]]:
    """Processes and threads per process."""
    return {"one_core": (1, 1), "threads": (1, cores), "processes": (cores, 1)}


def train(recipe_name: str, steps: int) -> None:
    """Print the median seconds per step."""
    recipe = RECIPES[recipe_name]()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(task_of(recipe), recipe.train, Path(folder))
        for _ in range(3):
            trainer.update()
        took = statistics.median(seconds(trainer.update) for _ in range(steps))
        if trainer.distributed.rank == 0:
            print(f"took {took}", flush=True)
        trainer.distributed.drain()


def start(recipe_name: str, processes: int, threads: int, steps: int) -> float:
    """Seconds per step, in new processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [__file__, "--train", "--recipes", recipe_name, "--steps", str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(next(line for line in run.stdout.splitlines() if line.startswith("took ")).split()[1])


def compare(recipe_name: str, cores: int, repeats: int, steps: int) -> dict[str, float]:
    turns = [{way: start(recipe_name, *how, steps) for way, how in ways(cores).items()} for _ in range(repeats)]
    batch = RECIPES[recipe_name]().train.batch_size
    rates = {way: round(batch / statistics.median(turn[way] for turn in turns), 1) for way in ways(cores)}
    ratios = {
        f"processes_over_{way}": round(statistics.median(turn[way] / turn["processes"] for turn in turns), 2)
        for way in ("one_core", "threads")
    }
    return {**{f"images_a_second_{way}": rate for way, rate in rates.items()}, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["shapes-fm", "shapes-dtm-mean", "shapes-artm-3"])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="timed steps per start")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)  # used by the started processes
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    if args.train:
        return train(*args.recipes, args.steps)
    results = {name: compare(name, args.cores, args.repeats, args.steps) for name in args.recipes}
    text = json.dumps({"cores": args.cores, "torch": torch.__version__, **results}, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
