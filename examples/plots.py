"""Scatter plots for the examples."""

from pathlib import Path

import torch

try:
    import matplotlib
except ImportError:
    raise SystemExit("The examples need matplotlib: pip install -e '.[plot]' in the clone.") from None
matplotlib.use("Agg")
import matplotlib.pyplot as plt

LIMIT = 2.6


def figure(rows: int, columns: int):  # noqa: ANN201
    """A grid of square axes without ticks."""
    _, axes = plt.subplots(rows, columns, figsize=(2.1 * columns, 2.25 * rows), squeeze=False, layout="constrained")
    for ax in axes.flat:
        ax.set(xlim=(-LIMIT, LIMIT), ylim=(-LIMIT, LIMIT), xticks=[], yticks=[], aspect="equal")
    return axes


def plot_points(ax: plt.Axes, x: torch.Tensor, title: str) -> None:
    """Points of the plane, (n, 2)."""
    ax.scatter(*x.T, s=1.2, alpha=0.5, linewidths=0, color="tab:blue")
    ax.set_title(title, fontsize=9)


def plot_paths(ax: plt.Axes, states: list[torch.Tensor], title: str) -> None:
    """The way each of a few points went, and where it ended."""
    for line in torch.stack(states, dim=1):
        ax.plot(*line.T, lw=0.6, alpha=0.7, color="tab:gray")
    ax.scatter(*states[-1].T, s=7, color="tab:red", zorder=3, linewidths=0)
    ax.set_title(title, fontsize=9)


def save(path: Path) -> None:
    """Write the image, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, dpi=110)
    plt.close("all")
