"""CPU seconds of one core until flow matching reaches a fixed quality, for several ways of training.

    python benchmarks/time_to_quality.py [--settings adamw muon] [--seeds 1 2 3]

Each run uses one thread. After each of the last nine twentieths of a run, its averaged weights generate images for
validation prompts, with 16 Euler steps and the same guidance for all. On `shapes` the quality is .85 of the captions
satisfied, and a validation loss (at uniform times) of at most that of the first run that satisfies as many. Evaluation
does not count, checkpoints do. Killed runs resume (after Ctrl-C, the seconds of its part are lost), and finished
ones are kept in --work; rows of other settings and seeds stay in --out. `make docs` writes docs/time_to_quality.md.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from tmatch.datasets import shapes_split
from tmatch.eval.evaluate import evaluate
from tmatch.files import write_text
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.recipes import RECIPES
from tmatch.runs import RunConfig
from tmatch.runs.fit import build_trainer
from tmatch.train import GeneratorTask

CAPTIONS, PARTS, FIRST = 0.85, 20, 12
SAMPLING = SamplingConfig(steps=16, guidance=2.0)
ADAMW = {"train.optimizer": "adamw", "density": "uniform"}
MUON = {"train.optimizer": "muon", "density": "logit-normal"}
Row = dict[str, Any]


SETTINGS: dict[str, Row] = {
    "adamw": {"train.steps": 25_000, "train.learning_rate": 2e-3, **ADAMW},
    "adamw, short": {"train.steps": 9_000, "train.learning_rate": 2e-3, **ADAMW},
    "muon": {"train.steps": 7_500, "train.learning_rate": 4e-3, **MUON},
    "muon, long": {"train.steps": 11_000, "train.learning_rate": 4e-3, **MUON},
}
"""Changes to the recipe shapes-fm, by dotted names."""


def configure(changes: Row, seed: int) -> RunConfig:
    """The recipe with some settings changed."""
    run = RECIPES["shapes-fm"]()
    assert isinstance(run, RunConfig)
    settings = run.model_dump()
    quiet = {"train.validate_every": 0, "train.preview_every": 0, "train.checkpoint_every": changes["train.steps"]}
    for name, value in {**changes, **quiet, "train.seed": seed}.items():
        *groups, last = name.split(".")
        group = settings
        for key in groups:
            group = group[key]
        group[last] = value
    return RunConfig.model_validate(settings)


def train(changes: Row, seed: int, prompts: int, out: Path) -> list[Row]:
    """Train a run, and evaluate it after each of its last parts."""
    torch.set_num_threads(1)
    run, log = configure(changes, seed), out / "quality.json"
    trainer, dataset = build_trainer(run, out)
    images = shapes_split(prompts, "validation")
    rows: list[Row] = json.loads(log.read_text()) if log.exists() else []
    trainer.resume()
    for part in range(FIRST, PARTS + 1):
        until = part * run.train.steps // PARTS
        if not rows or rows[-1]["step"] < until:
            started = time.process_time()
            trainer.run(until=until)
            seconds = time.process_time() - started + (rows[-1]["cpu_seconds"] if rows else 0)
            rows.append({"step": trainer.step, "cpu_seconds": round(seconds, 1)})
            write_text(log, json.dumps(rows, indent=1) + "\n")
        if rows[-1]["step"] == until and "score" not in rows[-1]:
            average = trainer.ema
            assert isinstance(average, GeneratorTask)
            pipeline = TextToImage(average.model, average.encoder, dataset.codec, dataset.shape, dataset.grids)
            found = evaluate(pipeline, images.captions, sampling=SAMPLING)
            rows[-1] |= {"score": found["captions_satisfied"], "validation_loss": round(average.validate()["mean"], 4)}
            print(out.name, rows[-1], flush=True)
            write_text(log, json.dumps(rows, indent=1) + "\n")
    return rows


def table(runs: list[Row]) -> list[str]:
    """The runs."""

    def first(run: Row, loss: float = float("inf")) -> Row | None:
        return next((row for row in run["rows"] if row["score"] >= CAPTIONS and row["validation_loss"] <= loss), None)

    there = first(runs[0]) or runs[0]["rows"][-1]
    loss = there["validation_loss"]
    lines = [
        f"The score is the share of captions satisfied, and its bar is {CAPTIONS}. The loss is the validation loss",
        f"at uniform times, and its bar is {loss}, where the first run reaches the score.",
        "",
        "| settings | seed | steps of the run | steps to the score | CPU seconds | loss there | CPU seconds to both | "
        "score and loss at the end |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for run in runs:
        cells = ["not reached", "", ""]
        if (row := first(run)) is not None:
            cells = [f"{row['step']:,}", f"{row['cpu_seconds']:,.0f}", str(row["validation_loss"])]
        both, last = first(run, loss), run["rows"][-1]
        cells += ["not reached" if both is None else f"{both['cpu_seconds']:,.0f}"]
        end, steps = f"{last['score']:.3f}, {last['validation_loss']}", f"{run['changes']['train.steps']:,}"
        end += f" after {last['cpu_seconds']:,.0f} s"
        lines.append(f"| {run['settings']} | {run['seed']} | {steps} | {' | '.join(cells)} | {end} |")
    return lines


def report(result: Row) -> str:
    """The page docs/time_to_quality.md."""
    lines = ["# Training time to a fixed quality", "", "<!-- Generated by `make docs`; do not edit. -->", ""]
    lines += [
        "CPU seconds of one core until the averaged weights of flow matching on `shapes` reach a quality on",
        f"{result['prompts']:,} validation captions, in {SAMPLING.steps} Euler steps; without evaluation, with",
        "checkpoints. Runs are evaluated after each of their last nine twentieths; they shared the machine.",
        "`python benchmarks/time_to_quality.py --settings NAME --seeds SEED` adds a row and defines the settings.",
        "",
    ]
    return "\n".join([*lines, *table(result["runs"])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=["adamw", "muon"], choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/time_to_quality"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/time_to_quality.json"))
    args = parser.parse_args()
    jobs = [(name, seed) for seed in args.seeds for name in args.settings]
    result: Row = json.loads(args.out.read_text()) if args.out.exists() else {"runs": []}
    order = list(SETTINGS)
    kept = [run for run in result["runs"] if run["settings"] in order and (run["settings"], run["seed"]) not in jobs]
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        futures = []
        for name, seed in jobs:
            out = args.work / f"{name.replace(', ', '-')}-{seed}"
            given = {"settings": name, "seed": seed, "changes": SETTINGS[name]}
            futures.append((given, pool.submit(train, SETTINGS[name], seed, args.prompts, out)))
        runs = [*kept, *({**given, "rows": future.result()} for given, future in futures)]
    runs.sort(key=lambda run: (order.index(run["settings"]), run["seed"]))
    args.out.write_text(json.dumps({"prompts": args.prompts, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
