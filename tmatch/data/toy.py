"""Two-dimensional toy densities."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tmatch.rng import RandomStreams


def moons(rng: RandomStreams) -> Tensor:
    """Two interleaved half circles."""
    u = rng.uniform(2)
    angle, upper = math.pi * u[:, 0], u[:, 1] < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return torch.stack((x, y), dim=-1) * 1.4 + 0.07 * rng.normal(2)


def checkerboard(rng: RandomStreams) -> Tensor:
    """The dark squares of a 4 x 4 board."""
    u = rng.uniform(3)
    column = (4 * u[:, 0]).floor()
    row = 2 * (2 * u[:, 1]).floor() + column % 2
    points = torch.stack((4 * u[:, 0], row + u[:, 2]), dim=-1)
    return points - 2


def rings(rng: RandomStreams) -> Tensor:
    """Two circles around the origin."""
    u = rng.uniform(2)
    radius = torch.where(u[:, 0] < 0.35, 0.7, 1.7) + 0.06 * rng.normal()
    angle = 2 * math.pi * u[:, 1]
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1)


def corners(rng: RandomStreams) -> Tensor:
    """Two Gaussians on a diagonal: the marginals are symmetric, but the coordinates are correlated."""
    side = torch.where(rng.uniform() < 0.5, -1.0, 1.0)
    return 1.2 * side[:, None] + 0.25 * rng.normal(2)


TOYS: dict[str, Callable[[RandomStreams], Tensor]] = {
    "moons": moons,
    "checkerboard": checkerboard,
    "rings": rings,
    "corners": corners,
}
"""Each maps random streams to points, (batch, 2)."""
