"""How far an image depends on the batch it is generated in: shipped models, in float32 on a CPU.

    python benchmarks/batch_size.py [--models NAME ...] [--images 40] [--out docs/results/batch_size.json]

Every image is generated in batches of several sizes and compared with the one from a batch of 64: how many images have
pixels of another level (of 256), the largest difference in levels, and how many tensors are not equal to the bit.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from tmatch.pipeline import Pipeline
from tmatch.runs import MODELS

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 20)
PROMPTS = ["a red circle and a blue square", "three crosses", "a green triangle", "two blue circles"]


def levels(images: Tensor) -> Tensor:
    return (images * 255).round()


def measure(name: str, count: int) -> dict[str, dict[str, int]]:
    """For each batch size, the differences from a batch of 64; the last batch has as many images as the others."""
    pipe, rows = Pipeline.from_pretrained(name), {}
    prompts = [PROMPTS[k % len(PROMPTS)] for k in range(count)]
    whole = pipe(prompts, seed=0, batch_size=64).tensors
    for size in SIZES:
        full = count // size * size
        images = pipe(prompts[:full], seed=0, batch_size=size).tensors
        change = (levels(images) - levels(whole[:full])).abs().flatten(1).amax(1)
        rows[str(size)] = {
            "images": full,
            "images_that_differ": int((change > 0).sum()),
            "levels": int(change.max()),
            "tensors_that_differ": sum(not torch.equal(*pair) for pair in zip(images, whole, strict=False)),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    rows = {}
    for name in args.models:
        rows[name] = measure(name, args.images)
        print(name, *(f"  batches of {size}: {row}" for size, row in rows[name].items()), sep="\n", flush=True)
    if args.out is not None:
        result = {"cpu_threads": torch.get_num_threads(), "models": rows}
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
