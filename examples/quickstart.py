"""Train DTM and flow matching on a density in the plane, sample both, and plot the samples.

    python examples/quickstart.py --out out/quickstart.png

About a minute on two CPU cores.
"""

import argparse
import time
from pathlib import Path

import torch
from plots import figure, plot_paths, plot_points, save

import tmatch as tm
from tmatch.data import TOYS

STEPS = (1, 2, 4, 16)


def train(name: str, density: str, iterations: int, batch: int = 256) -> tm.TransitionMatching:
    """A plain training loop: a point in the plane is a state of one token with two channels."""
    torch.manual_seed(0)
    backbone = tm.MLP(grid=(1,), channels=2, width=96, depth=3)
    model = tm.build(name, backbone, channels=2, head=tm.HeadConfig(width=64, depth=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    for step in range(iterations):
        x_T = TOYS[density](tm.RandomStreams.derive(1, step, batch))[:, None]
        loss = model.loss(x_T, tm.RandomStreams.derive(2, step, batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/quickstart.png"), help="output image")
    parser.add_argument("--density", choices=TOYS, default="moons")
    parser.add_argument("--iterations", type=int, default=2000, help="training steps per model")
    parser.add_argument("--samples", type=int, default=4000)
    args = parser.parse_args()
    torch.set_num_threads(1)  # networks this small do not benefit from a second core

    axes = figure(rows=2, columns=len(STEPS) + 2)
    target = TOYS[args.density](tm.RandomStreams(range(args.samples)))
    for row, name in zip(axes, ("fm", "dtm"), strict=True):
        started = time.perf_counter()
        model = train(name, args.density, args.iterations)
        print(f"{name.upper()}: trained in {time.perf_counter() - started:.0f} s")
        plot_points(row[0], target, "target")
        for ax, steps in zip(row[1:], STEPS, strict=False):
            result = tm.generate(
                model, (1, 2), range(args.samples), steps=steps, batch_size=args.samples, keep_path=True,
                params=tm.SamplingParams(solver=tm.Midpoint(8)),
            )  # fmt: skip
            plot_points(ax, result.x[:, 0], f"{name.upper()}, {steps} step{'s' * (steps > 1)}")
            cost = result.evaluations
            print(f"  {steps:2d} steps: {cost.backbone} backbone and {cost.head} head evaluations")
        plot_paths(
            row[-1],
            [snapshot.x_t[:24, 0] for snapshot in result.path],
            f"{name.upper()}, paths of {STEPS[-1]} steps",
        )
    save(args.out)
    print(f"Image: {args.out}")


if __name__ == "__main__":
    main()
