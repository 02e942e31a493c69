"""Overhead of the sampler beyond the networks it calls.

    python benchmarks/sampler_overhead.py [--out docs/results/sampler_overhead.json]

Times `generate` with DTM and the same network calls without it, alternating after each transition so that both see the
same load on a shared machine, and reports the median ratio. The target is at most 1.05.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import tmatch as tm


def bare_transition(model: tm.TransitionMatching, x: torch.Tensor, head_steps: int) -> None:
    """The network calls of one transition: backbone, preparation of the head, head."""
    kernel = model.kernel
    assert isinstance(kernel, tm.ParallelFlow)
    t, s = torch.full((len(x),), 0.5), torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        context = kernel.head.prepare(kernel.backbone(x, t, None), t)
        for _ in range(head_steps):
            kernel.head(x, s, context)


def interleaved(model: tm.TransitionMatching, shape: tuple[int, ...], batch: int, transitions: int, head_steps: int):  # noqa: ANN201
    """Seconds of the sampler and of its bare calls, alternating after each transition."""
    x = tm.RandomStreams(range(batch)).normal(*shape)
    bare, began = 0.0, time.perf_counter()

    def observe(fixed_time: tm.Snapshot) -> None:
        nonlocal bare
        if fixed_time.kind == "transition":
            started = time.perf_counter()
            bare_transition(model, x, head_steps)
            bare += time.perf_counter() - started

    params = tm.SamplingParams(tm.Euler(head_steps))
    tm.generate(model, shape, range(batch), steps=transitions, params=params, batch_size=batch, callback=observe)
    return time.perf_counter() - began - bare, bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=256)
    parser.add_argument("--head-depth", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8, help="rows and columns of tokens")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--transitions", type=int, default=16)
    parser.add_argument("--head-steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()

    torch.manual_seed(0)
    backbone = tm.DiT(channels=16, width=args.width, depth=args.depth, heads=8)
    model = tm.build("dtm", backbone, channels=16, head=tm.HeadConfig(width=args.head_width, depth=args.head_depth))
    shape = (args.rows, args.rows, 16)
    runs = [interleaved(model, shape, args.batch, args.transitions, args.head_steps) for _ in range(args.repeats + 1)][
        1:
    ]  # the first warms up
    result = {
        "ratio": round(statistics.median(sampler / bare for sampler, bare in runs), 4),
        "sampler_seconds": round(statistics.median(sampler for sampler, _ in runs), 3),
        "bare_seconds": round(statistics.median(bare for _, bare in runs), 3),
        "ratios": [round(sampler / bare, 4) for sampler, bare in runs],
        "setting": {name: value for name, value in vars(args).items() if name != "out"},
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
