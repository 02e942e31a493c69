"""Sample from one `Pipeline` in many threads, and compare every image to the bit with the same call alone.

    python benchmarks/threads.py [--models shapes-dtm-from-fm pretrained] [--threads 64] [--seconds 60]
        [--out docs/results/threads.json]

The calls are a fixed list of random prompts, seeds, steps, guidance scales, sizes and batches. Each is made alone in
the main thread first; then all threads make random ones of them until the time is over. Tensors and the counts of
network evaluations must be equal. The model `pretrained` is built here, from a small text encoder of transformers and a
small autoencoder of diffusers. `--switch` sets how often Python switches threads, to provoke races.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from prepare import build_encoders, write_images

from tmatch.app.cli import main as tmatch
from tmatch.app.sampling_options import DEFAULT_MODEL
from tmatch.kernel.base import SequentialKernel
from tmatch.pipeline import Pipeline, PipelineOutput
from tmatch.runs import MODELS

PROMPTS = ["a red circle", "a blue square", "three crosses", "a green triangle and a red cross", "two yellow circles"]
CALLS = 24
PRETRAINED = "pretrained"
SIZES = {
    "backbone.width": 32, "backbone.depth": 2, "backbone.heads": 2, "head.width": 32, "head.depth": 1,
    "train.steps": 1, "train.batch-size": 2, "train.preview-every": 0,
}  # fmt: skip


@dataclass
class Tally:
    """What the threads found."""

    calls: int = 0
    images: int = 0
    different_images: int = 0
    different_evaluations: int = 0
    errors: list[str] = field(default_factory=list)


def random_call(pipe: Pipeline, rng: random.Random) -> dict[str, Any]:
    """Arguments of a call; models that sample token after token take as many steps as they were trained with."""
    prompts = rng.sample(PROMPTS, rng.randint(1, 3))
    call: dict[str, Any] = {"prompt": prompts, "num_images_per_prompt": rng.randint(1, 2), "seed": rng.randrange(1000)}
    call["guidance_scale"] = rng.choice([0.0, 1.0, 1.5, 2.0, 4.0])
    call["batch_size"] = rng.choice([1, 2, 64])
    call["width"] = rng.choice([32, 48])
    call["negative_prompt"] = rng.choice(["", "a red circle"])
    if not isinstance(pipe.networks.model.kernel, SequentialKernel):
        call["num_inference_steps"] = rng.choice([1, 2, 4, 8])
    if pipe.networks.model.kernel.head is not None:
        call["head_steps"] = rng.choice([1, 2, 4])
        call["solver"] = rng.choice(["euler", "midpoint", "heun"])
    return call


def build_pretrained(folder: Path) -> Path:
    """A run on data shards, whose captions a text encoder with a tokenizer reads; it truncates the longer prompts."""
    autoencoder, text = build_encoders(folder)
    write_images(folder / "images", 8)
    shards, run = str(folder / "shards"), folder / "run"
    encoders = ["--autoencoder", autoencoder, "--text", text, "--size", "32", "--max-length", "5"]
    tmatch(["prepare", str(folder / "images"), "--out", shards, *encoders])
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    tmatch(["train", "shards-dtm", "--data.folders", shards, "--out", str(run), *sizes])
    return run


def sample(pipe: Pipeline, call: dict[str, Any]) -> PipelineOutput:
    return pipe(**call, output_type="pt")


def work(
    pipe: Pipeline, calls: list[dict[str, Any]], expected: list[PipelineOutput], seed: str, end: float, tally: Tally,
    lock: threading.Lock,
) -> None:  # fmt: skip
    """Make random calls until the time is over."""
    rng = random.Random(seed)
    while time.monotonic() < end:
        k = rng.randrange(len(calls))
        try:
            found = sample(pipe, calls[k])
        except Exception:
            with lock:
                tally.errors.append(traceback.format_exc())
            return
        same = [torch.equal(*pair) for pair in zip(found.tensors, expected[k].tensors, strict=True)]
        with lock:
            tally.calls += 1
            tally.images += len(same)
            tally.different_images += same.count(False)
            tally.different_evaluations += found.evaluations != expected[k].evaluations


def measure(name: str | Path, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """The tally of a model."""
    pipe, rng = Pipeline.from_pretrained(name), random.Random(seed)
    calls = [random_call(pipe, rng) for _ in range(CALLS)]
    expected = [sample(pipe, call) for call in calls]
    tally, lock, end = Tally(), threading.Lock(), time.monotonic() + seconds
    workers = [
        threading.Thread(target=work, args=(pipe, calls, expected, f"{seed} {k}", end, tally, lock))
        for k in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    hooks = sum(len(module._forward_hooks) for module in pipe.networks.modules())
    errors = sorted(set(tally.errors))
    return {**vars(tally), "hooks_left": hooks, "errors": len(tally.errors), "first_error": errors[0] if errors else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models",
        nargs="+",
        default=[DEFAULT_MODEL, PRETRAINED],
        help=f"of {', '.join(MODELS)}, {PRETRAINED}, or folders of runs",
    )
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="per model")
    parser.add_argument("--switch", type=float, help="seconds between switches of Python threads, such as 1e-6")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    if args.switch is not None:
        sys.setswitchinterval(args.switch)
    warnings.simplefilter("ignore")  # about prompts
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            model = build_pretrained(Path(folder)) if name == PRETRAINED else name
            rows[name] = measure(model, args.threads, args.seconds, args.seed)
            print(f"{name}: {json.dumps(rows[name], indent=2)}", flush=True)
    result = {"threads": args.threads, "seconds": args.seconds, "cpu_threads": torch.get_num_threads(), "models": rows}
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    wrong = ("different_images", "different_evaluations", "errors", "hooks_left")
    if any(row[key] for row in rows.values() for key in wrong):
        raise SystemExit("Threads disturb each other.")


if __name__ == "__main__":
    main()
