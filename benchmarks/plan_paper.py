"""The paper's sampling times on an H100 compared with what its networks compute, and an estimate of its training.

    python benchmarks/plan_paper.py [--out docs/results/plan_paper.json] [--tables]

Nothing is timed: FLOPs and bytes of weights are counted on the meta device; the rest is the vendor's figures and one
utilisation per network. `--tables` prints the tables of docs/plan.md.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import tmatch as tm
from tmatch.generation.config import SamplingConfig
from tmatch.plan import DEVICES, Cost, Utilisation, plan, sampling_cost, seconds, to_json

SHAPE, TEXT = (16, 16, 16), (128, 4096)  # 256 tokens of 2x2x4 numbers; captions of up to 128 tokens from Flan-UL2
H100 = DEVICES["H100 SXM"]
BACKBONE_MS, HEAD_MS = 84.0, 3.5  # from the margins of the paper's table of DTM inference times
STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
TABLE = {
    0: (0.1, 0.2, 0.3, 0.7, 1.3, 2.7, 5.4, 10.8),
    1: (0.1, 0.2, 0.4, 0.7, 1.4, 2.8, 5.6, 11.2),
    2: (0.1, 0.2, 0.4, 0.7, 1.5, 2.9, 5.8, 11.6),
    4: (0.1, 0.2, 0.4, 0.8, 1.6, 3.1, 6.3, 12.5),
    8: (0.1, 0.2, 0.4, 0.9, 1.8, 3.6, 7.2, 14.3),
    16: (0.1, 0.3, 0.6, 1.1, 2.2, 4.5, 9.0, 17.9),
    32: (0.2, 0.4, 0.8, 1.6, 3.1, 6.3, 12.5, 25.1),
    64: (0.3, 0.6, 1.2, 2.5, 4.9, 9.9, 19.7, 39.4),
    128: (0.5, 1.1, 2.1, 4.3, 8.5, 17.0, 34.0, 68.1),
}
"""Seconds per image by head steps (0 is flow matching) and transitions, as printed in the paper."""
FITTED = Utilisation(backbone=0.019, head=0.0037)
"""Gives 84 and 3.5 ms for a guided image in bfloat16: fitted to those two numbers, not measured."""


def model(name: str) -> tm.Model:
    """A model of the paper's size, with nothing allocated."""
    with torch.device("meta"):
        backbone = tm.DiT(channels=16, width=2048, depth=24, heads=16, condition_width=4096)
        return tm.build(name, backbone, channels=16, head=tm.HeadConfig(width=1024))


def formula(steps: int, head_steps: int) -> float:
    """T (84 + 3.5 S) ms, in seconds."""
    return steps * (BACKBONE_MS + HEAD_MS * head_steps) / 1000


def costs(guided: bool) -> dict[str, Cost]:
    """Cost of one call for one image: backbone, preparation of the head, head, read-out."""
    config = SamplingConfig(steps=1, head_steps=1, guidance=2.0 if guided else 1.0)
    backbone, prepared, head = (calls.each for calls in sampling_cost(model("dtm"), SHAPE, TEXT, config).calls)
    *_, readout = (calls.each for calls in sampling_cost(model("fm"), SHAPE, TEXT, config).calls)
    return {"backbone": backbone, "preparation": prepared, "head": head, "readout": readout}


def predicted(each: Mapping[str, Cost], steps: int, head_steps: int, shares: Utilisation) -> float:
    """Seconds per image; 0 head steps is flow matching."""
    backbone, prepared, head, readout = (
        seconds(each[name], H100, "bfloat16", shares.head if name in ("preparation", "head") else shares.backbone)
        for name in ("backbone", "preparation", "head", "readout")
    )
    return steps * (backbone + (prepared + head_steps * head if head_steps else readout))


def compare() -> dict[str, Any]:
    """All results on sampling."""
    each = {"guided": costs(True), "not guided": costs(False)}
    guided = each["guided"]
    joint = guided["head"].flops + guided["preparation"].flops
    cells = [(steps, head_steps) for head_steps in TABLE for steps in STEPS]
    errors = [predicted(guided, *cell, FITTED) / formula(*cell) - 1 for cell in cells]
    return {
        "cells": len(cells),
        "cells_that_are_the_formula": sum(
            abs(formula(steps, head) - TABLE[head][STEPS.index(steps)]) <= 0.0501 for steps, head in cells
        ),
        "gflops": {how: {name: cost.flops / 1e9 for name, cost in found.items()} for how, found in each.items()},
        "weights_read": {name: cost.weights for name, cost in guided.items()},
        "milliseconds_to_read_them": {
            name: 1000 * seconds(Cost(0, cost.weights), H100, "bfloat16", 1.0) for name, cost in guided.items()
        },
        "ratio_of_backbone_to_head": {
            "paper": BACKBONE_MS / HEAD_MS,
            "flops": guided["backbone"].flops / guided["head"].flops,
            "flops_if_the_head_prepared_at_every_step": guided["backbone"].flops / joint,
            "weights": guided["backbone"].weights / guided["head"].weights,
        },
        "implied_utilisation": {
            how: {precision: implied(found, getattr(H100, precision)) for precision in ("bfloat16", "tf32", "float32")}
            for how, found in each.items()
        },
        "fitted_utilisation": {"backbone": FITTED.backbone, "head": FITTED.head},
        "seconds": {head: [round(predicted(guided, steps, head, FITTED), 3) for steps in STEPS] for head in TABLE},
        "largest_error": max(errors, key=abs),
        "seconds_16_x_4_at_default_utilisation": predicted(guided, 16, 4, Utilisation()),
        "seconds_fm_128_at_default_utilisation": predicted(guided, 128, 0, Utilisation()),
    }


def implied(each: Mapping[str, Cost], peak: float) -> dict[str, float]:
    """Utilisation implied by the paper's times: FLOPs / (seconds x peak)."""
    return {
        "backbone": each["backbone"].flops / (BACKBONE_MS / 1000 * peak),
        "head": each["head"].flops / (HEAD_MS / 1000 * peak),
    }


def training() -> dict[str, Any]:
    """500K steps of 2048 images on 64 H100s; the paper does not state the number of GPUs."""
    return to_json(plan(model("dtm"), SHAPE, 2048, H100, 64, 500_000, text=TEXT, sampling=SamplingConfig()))


def tables(result: Mapping[str, Any]) -> str:
    """The tables of docs/plan.md."""
    gflops, read, run = result["gflops"], result["milliseconds_to_read_them"], result["training"]
    lines = [
        "| one call, one image | GFLOPs, guided | GFLOPs, unguided | ms to read the bfloat16 weights |",
        "|---|---|---|---|",
    ]
    for name in ("backbone", "preparation", "head"):
        numbers = f"{gflops['guided'][name]:,.1f} | {gflops['not guided'][name]:,.1f} | {read[name]:.3f}"
        lines.append(f"| {name} | {numbers} |")
    lines += [
        "",
        "| precision | backbone, guided | head, guided | backbone, unguided | head, unguided |",
        "|---|---|---|---|---|",
    ]
    for precision in ("bfloat16", "tf32", "float32"):
        shares = [result["implied_utilisation"][how][precision] for how in ("guided", "not guided")]
        numbers = " | ".join(f"{share[name]:.2%}" for share in shares for name in ("backbone", "head"))
        lines.append(f"| {precision} | {numbers} |")
    lines += ["", f"| head steps | {' | '.join(map(str, STEPS))} |", f"|---|{'---|' * len(STEPS)}"]
    for head, row in result["seconds"].items():
        pairs = zip(row, TABLE[int(head)], strict=True)
        lines.append(f"| {head} | {' | '.join(f'{ours:.2f} ({printed})' for ours, printed in pairs)} |")
    lines += [
        "",
        "| GiB per GPU (64 H100s, 32 images each, bfloat16) | states | copies | activations | total |",
        "|---|---|---|---|---|",
    ]
    for way, memory in run["memory_per_rank"].items():
        states = sum(memory[name] for name in ("weights", "gradients", "moments", "average"))
        numbers = [states, memory["copies"], memory["activations"], memory["total"]]
        lines.append(f"| {way} | {' | '.join(f'{number / 2**30:.1f}' for number in numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    parser.add_argument("--tables", action="store_true", help="print tables instead of JSON")
    args = parser.parse_args()
    result = json.loads(json.dumps({**compare(), "training": training(), "torch": torch.__version__}))
    text = json.dumps(result, indent=2)
    print(tables(result) if args.tables else text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
