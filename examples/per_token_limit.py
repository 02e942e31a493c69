"""What DTM loses when it samples tokens independently, and two ways to restore it.

    python examples/per_token_limit.py --out out/per_token_limit.png

The data are points in the plane near two of four corners, as *two tokens* of one channel. In a single step DTM samples
each coordinate from the right marginal but independently, and fills all four corners. More steps restore the
dependence, and so does a head patch that samples both tokens jointly. About a minute on two CPU cores.
"""

import argparse
from pathlib import Path

import torch
from plots import figure, plot_points, save

import tmatch as tm
from tmatch.data import TOYS

STEPS = (1, 2, 4, 16)


def train(head_patch: tuple[int, ...] | None, iterations: int, batch: int = 256) -> tm.TransitionMatching:
    """DTM on two tokens; with head_patch=(2,) one head token covers both."""
    torch.manual_seed(0)
    backbone = tm.MLP(grid=(2,), channels=1, width=64, depth=2)
    model = tm.build("dtm", backbone, channels=1, head=tm.HeadConfig(width=48, depth=2, patch=head_patch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    for step in range(iterations):
        x_T = TOYS["corners"](tm.RandomStreams.derive(1, step, batch))[..., None]
        loss = model.loss(x_T, tm.RandomStreams.derive(2, step, batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


def points(model: tm.TransitionMatching, steps: int, samples: int) -> torch.Tensor:
    """Sample points, (n, 2)."""
    params = tm.SamplingParams(solver=tm.Midpoint(8))
    return tm.generate(model, (2, 1), range(samples), steps=steps, params=params, batch_size=samples).x[..., 0]


def correlation(x: torch.Tensor) -> float:
    """Correlation of the two coordinates."""
    return torch.corrcoef(x.T)[0, 1].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/per_token_limit.png"), help="output image")
    parser.add_argument("--iterations", type=int, default=1500, help="training steps per model")
    parser.add_argument("--samples", type=int, default=3000)
    args = parser.parse_args()
    torch.set_num_threads(1)  # networks this small do not benefit from a second core

    axes = figure(rows=2, columns=len(STEPS) + 1)
    target = TOYS["corners"](tm.RandomStreams(range(args.samples)))
    for row, (words, patch) in zip(axes, (("token by token", None), ("head patch over both", (2,))), strict=True):
        model = train(patch, args.iterations)
        plot_points(row[0], target, f"target, corr. {correlation(target):.2f}")
        for ax, steps in zip(row[1:], STEPS, strict=True):
            x = points(model, steps, args.samples)
            plot_points(ax, x, f"{steps} step{'s' * (steps > 1)}, corr. {correlation(x):.2f}")
            print(f"{words}, {steps} steps: correlation {correlation(x):.3f} (target {correlation(target):.3f})")
        row[0].set_ylabel(words, fontsize=9)
    save(args.out)
    print(f"Image: {args.out}")


if __name__ == "__main__":
    main()
