"""Overhead of the samplers beyond the networks they call.

    python benchmarks/sampler_overhead.py [--out docs/results/sampler_overhead.json]

Times `generate` with each sampler and the same network calls without it, alternating after each transition so that both
see the same load on a shared machine, and reports the median ratio. The target is at most 1.05.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import tmatch as tm
from tmatch.solver import AB2

METHODS = {
    "dtm": ("dtm", "default", 1), "dtm, overshoot": ("dtm", "overshoot:0.5", 1), "dtm, sde": ("dtm", "sde", 1),
    "dtm-mean, ab2": ("dtm-mean", "ab2", 1), "fm": ("fm", "default", 1), "fm, overshoot": ("fm", "overshoot:0.5", 1),
    "fm, ab2": ("fm", "ab2", 1), "fm, ab3": ("fm", "ab3", 1), "fm, dpm++2m": ("fm", "dpm++2m", 1),
    "fm, unipc": ("fm", "unipc", 1), "fm, midpoint": ("fm", "midpoint", 2), "fm, glass": ("fm", "glass", 4),
}  # fmt: skip
"""Variant, sampler, and evaluations of the backbone per transition."""
FIRST = {"ab3": 2}
"""Evaluations of the first transition, where they are others."""


def bare_transition(model: tm.TransitionMatching, x: torch.Tensor, evaluations: int, head_steps: int) -> None:
    """The network calls of one transition: backbone and readout, preparation of the head, head."""
    kernel = model.kernel
    t, s = torch.full((len(x),), 0.5), torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(evaluations):
            h = kernel.backbone(x, t, None)
            if (readout := getattr(kernel, "readout", None)) is not None:
                readout(h)
        if kernel.head is not None:
            y = x.flatten(1, -2).unsqueeze(1)
            context = kernel.head.prepare(h.flatten(1, -2).unsqueeze(1), t)
            for _ in range(head_steps):
                kernel.head(y, s, context)


def interleaved(
    model: tm.TransitionMatching, sampler: str, evaluations: int, shape: tuple[int, ...], args: argparse.Namespace
) -> float:
    """The time of a sampler over that of its bare calls, alternating after each transition."""
    x = tm.RandomStreams(range(args.batch)).normal(*shape)
    bare, began, first = 0.0, time.perf_counter(), FIRST.get(sampler, evaluations)
    calls = iter([first] + [evaluations] * (args.transitions - 1))

    def observe(snapshot: tm.Snapshot) -> None:
        nonlocal bare
        if snapshot.kind == "transition":
            started = time.perf_counter()
            bare_transition(model, x, next(calls), args.head_steps)
            bare += time.perf_counter() - started

    tm.generate(
        model, shape, range(args.batch), steps=args.transitions, params=tm.SamplingParams(AB2(args.head_steps)),
        batch_size=args.batch, callback=observe, sampler=tm.build_sampler(sampler),
    )  # fmt: skip
    return (time.perf_counter() - began - bare) / bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=256)
    parser.add_argument("--head-depth", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8, help="rows and columns of tokens")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--transitions", type=int, default=8)
    parser.add_argument("--head-steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=list(METHODS), help="only these methods")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()

    shape, head = (args.rows, args.rows, 16), tm.HeadConfig(width=args.head_width, depth=args.head_depth)
    torch.manual_seed(0)
    backbone = tm.DiT(channels=16, width=args.width, depth=args.depth, heads=8)
    models = {name: tm.build(name, backbone, channels=16, head=head) for name in ("dtm", "dtm-mean", "fm")}
    ratios: dict[str, list[float]] = {name: [] for name in args.only or METHODS}
    for _ in range(args.repeats + 1):
        for name, found in ratios.items():
            variant, sampler, evaluations = METHODS[name]
            found.append(interleaved(models[variant], sampler, evaluations, shape, args))
    ratios = {name: found[1:] for name, found in ratios.items()}  # the first warms up
    result = {
        "ratio": round(max(statistics.median(found) for found in ratios.values()), 4),
        "median": {name: round(statistics.median(found), 4) for name, found in ratios.items()},
        "ratios": {name: [round(ratio, 4) for ratio in found] for name, found in ratios.items()},
        "setting": {name: value for name, value in vars(args).items() if name not in ("out", "only")},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
