"""How much the sampler costs beyond the networks it calls.

    python benchmarks/sampler_overhead.py [--out docs/results/sampler_overhead.json]

Times `generate` with DTM, and the very network calls it makes with nothing around them, in turns in one run, and
reports the median of the ratios. The bar is 1.05. On a shared machine single ratios scatter; `within` is free of that:
the sampler's wall time over the time it spent inside its own network calls, in one and the same run.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import tmatch as tm


def bare_calls(model: tm.TransitionMatching, x: torch.Tensor, transitions: int, head_steps: int) -> None:
    """The backbone, what the head prepares, and the head: as often as the sampler calls them."""
    kernel = model.kernel
    assert isinstance(kernel, tm.ParallelFlow)
    t, s = torch.full((len(x),), 0.5), torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(transitions):
            h_t = kernel.backbone(x, t, None)
            context = kernel.head.prepare(h_t, t)
            for _ in range(head_steps):
                kernel.head(x, s, context)


def within(model: tm.TransitionMatching, sampler) -> float:  # noqa: ANN001
    """The sampler's wall time over the time spent inside the networks while it ran."""
    inside = 0.0

    def timed(function):  # noqa: ANN001, ANN202
        def call(*arguments):  # noqa: ANN002, ANN202
            nonlocal inside
            started = time.perf_counter()
            result = function(*arguments)
            inside += time.perf_counter() - started
            return result

        return call

    networks = [(model.kernel.backbone, "forward"), (model.kernel.head, "forward"), (model.kernel.head, "prepare")]
    for network, method in networks:
        setattr(network, method, timed(getattr(network, method)))
    total = seconds(sampler)
    for network, method in networks:
        delattr(network, method)  # the class's own is back
    return total / inside


def seconds(work, *arguments) -> float:  # noqa: ANN001, ANN002
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=256)
    parser.add_argument("--head-depth", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8, help="rows, and columns, of tokens")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--transitions", type=int, default=16)
    parser.add_argument("--head-steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", type=Path, help="also write the result there")
    args = parser.parse_args()

    torch.manual_seed(0)
    backbone = tm.DiT(channels=16, width=args.width, depth=args.depth, heads=8)
    model = tm.build("dtm", backbone, channels=16, head=tm.HeadConfig(args.head_width, args.head_depth))
    shape, seeds = (args.rows, args.rows, 16), range(args.batch)
    x = tm.Noise(seeds).normal(*shape)
    decoding = tm.Decoding(tm.Euler(args.head_steps))

    def sampler() -> None:
        tm.generate(model, shape, seeds, steps=args.transitions, decoding=decoding, batch_size=args.batch)

    def bare() -> None:
        bare_calls(model, x, args.transitions, args.head_steps)

    sampler(), bare()  # warm up
    pairs = []
    for repeat in range(args.repeats):
        order = (sampler, bare) if repeat % 2 == 0 else (bare, sampler)
        times = {work: seconds(work) for work in order}
        pairs.append((times[sampler], times[bare]))
    result = {
        "ratio": round(statistics.median(a / b for a, b in pairs), 4),
        "within": round(statistics.median(within(model, sampler) for _ in range(3)), 4),
        "sampler_seconds": round(statistics.median(a for a, _ in pairs), 3),
        "bare_seconds": round(statistics.median(b for _, b in pairs), 3),
        "ratios": [round(a / b, 4) for a, b in pairs],
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
