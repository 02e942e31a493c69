"""Small models, exact kernels and statistics that several tests share."""

import math

import torch
from torch import Tensor, nn

import tmatch as tm
from tmatch.process import Process, Schedule, Transition

SHAPE = (2, 3, 4)  # two rows of three tokens, four channels: not square on purpose
SMALL_HEAD = tm.HeadConfig(width=24, depth=2)
CODES = 11
SCHEDULES: dict[str, Schedule] = {
    "linear": tm.Linear(), "cosine": tm.Cosine(), "variance-preserving": tm.VariancePreserving(),
}  # fmt: skip
PROCESSES: dict[str, Process] = {
    "linear": tm.LinearProcess(),
    "independent-linear": tm.IndependentLinearProcess(),
    "gaussian-cosine": tm.GaussianProcess(tm.Cosine()),
    "gaussian-variance-preserving": tm.GaussianProcess(tm.VariancePreserving()),
    "diffusion-cosine": tm.DiffusionProcess(tm.Cosine()),
    "diffusion-variance-preserving": tm.DiffusionProcess(tm.VariancePreserving()),
}


def small_dit(condition_width: int | None = 8, channels: int = SHAPE[-1], timed: bool = True) -> tm.DiT:
    return tm.DiT(channels, width=24, depth=2, heads=2, condition_width=condition_width, timed=timed)


def small_model(
    name: str, condition_width: int | None = 8, head: tm.HeadConfig = SMALL_HEAD, backbone: nn.Module | None = None
) -> tm.Model:
    """A model without zero weights, which would hide parts of the network."""
    return awake(fresh_model(name, condition_width, head, backbone))


def fresh_model(
    name: str, condition_width: int | None = 8, head: tm.HeadConfig = SMALL_HEAD, backbone: nn.Module | None = None
) -> tm.Model:
    row = tm.VARIANTS[name]
    if backbone is None:
        backbone = small_dit(condition_width, 24 if row.embeds else SHAPE[-1], row.timed)
    return tm.build(name, backbone, SHAPE[-1], head, CODES if row.discrete else None)


def shape_of(name: str) -> tuple[int, ...]:
    """The shape of a state: codes are one number per token."""
    return (*SHAPE[:-1], 1) if tm.VARIANTS[name].discrete else SHAPE


def steps_of(name: str) -> int | None:
    """Ten steps, or the variant's own number if it takes no other."""
    return None if isinstance(tm.VARIANTS[name].parametrization, tm.NextState) else 10


def data_of(name: str, batch: int, seed: int = 500) -> Tensor:
    rng = tm.RandomStreams(range(seed, seed + batch))
    return (rng.uniform(*shape_of(name)) * CODES).floor() if tm.VARIANTS[name].discrete else rng.normal(*SHAPE)


def awake(network: nn.Module) -> nn.Module:
    """Move every parameter off its initial value: zero gates would hide half the network."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return network


def condition(batch: int, length: int = 3, width: int = 8, seed: int = 0) -> tm.Condition:
    return tm.Condition.dense(tm.RandomStreams(range(seed, seed + batch)).normal(length, width))


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor, sigmas: float = 5.0) -> None:
    """The sample has the given mean and covariance, within Monte-Carlo error."""
    n = len(x)
    variance = covariance.diagonal()
    mean_error = (x.mean(0) - mean).abs() / (variance / n).sqrt().clamp(min=1e-9)
    error = ((variance[:, None] * variance[None, :] + covariance**2) / n).sqrt().clamp(min=1e-9)
    covariance_error = (x.T.cov() - covariance).abs() / error
    assert mean_error.max() < sigmas, f"mean is {mean_error.max():.1f} standard errors off"
    assert covariance_error.max() < sigmas, f"covariance is {covariance_error.max():.1f} standard errors off"


class Oracle(tm.Kernel):
    """Returns the true Y, knowing the data."""

    def __init__(self, model_process: tm.Process, parametrization: tm.Parametrization, x_T: Tensor) -> None:
        super().__init__(nn.Identity())
        self.process, self.parametrization, self.x_T = model_process, parametrization, x_T

    def loss(self, y, x_t, t, condition, rng):  # noqa: ANN001, ANN201
        raise AssertionError("an oracle needs no training")

    def sample(self, x_t, t, t_next, condition, rng, params, callback=None):  # noqa: ANN001, ANN201
        sigma, alpha = self.process.coefficients(t, x_t)
        z_t = (x_t - alpha * self.x_T) / sigma
        x_next = self.process.advance(z_t, self.x_T, t, t_next, rng)
        return self.parametrization.target(Transition(z_t, x_t, x_next, self.x_T, sigma, alpha))


def normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class GaussianHead(tm.Head):
    """The exact velocity towards N(h, v): u_s(y) = h + (s v - (1 - s)) / ((1 - s)^2 + s^2 v) (y - s h)."""

    def __init__(self, channels: int, variance: float) -> None:
        super().__init__()
        self.channels = channels
        self.variance = variance

    def prepare(self, h: Tensor, t: Tensor | None, cache: object = None) -> Tensor:
        return h

    def forward(self, y_s: Tensor, s: Tensor, context: Tensor, r: Tensor | None = None) -> Tensor:
        s = s[..., None] if s.ndim else s
        slope = (s * self.variance - (1 - s)) / ((1 - s) ** 2 + s**2 * self.variance)
        return context + slope * (y_s - s * context)


class Reading(nn.Module):
    """A backbone that returns the state unchanged."""

    width = SHAPE[-1]

    def forward(self, x: Tensor, t: Tensor, condition: tm.Condition | None = None) -> Tensor:
        return x
