"""A Gaussian around the mean: DDPM."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from tmatch.condition import Condition
from tmatch.kernel.base import Decoding
from tmatch.kernel.mean import MeanKernel
from tmatch.noise import Noise
from tmatch.process import Schedule
from tmatch.tensors import State, Time


class Spread(ABC):
    """The standard deviation w_t of the Gaussian kernel."""

    @abstractmethod
    def __call__(self, t: Time) -> Time:
        """w_t."""


@dataclass(frozen=True)
class NoSpread(Spread):
    """w_t = 0: DDIM on a process with one X_0, DDPM with its smaller variance (beta-tilde) on the diffusion process."""

    def __call__(self, t: Time) -> Time:
        """w_t."""
        return torch.zeros_like(t)


@dataclass(frozen=True)
class UnitDataSpread(Spread):
    """w_t = alpha_t / sqrt(sigma_t^2 + alpha_t^2) for Y = X_0, sigma_t over it for Y = X_T: exact for N(0, I) data.

    On the diffusion process with a variance-preserving schedule this is DDPM with its larger variance, beta.
    """

    schedule: Schedule
    of: str = "noise"

    def __post_init__(self) -> None:
        if self.of not in ("noise", "data"):
            raise ValueError(f"The spread is that of 'noise' (Y = X_0) or of 'data' (Y = X_T); got {self.of!r}.")

    def __call__(self, t: Time) -> Time:
        """w_t."""
        sigma, alpha = self.schedule.sigma(t), self.schedule.alpha(t)
        return (alpha if self.of == "noise" else sigma) / (sigma**2 + alpha**2).sqrt()


class GaussianKernel(MeanKernel):
    """Y | X_t ~ N(E[Y | X_t], w_t^2 I): epsilon- and x-prediction; w_t is set, not learnt."""

    def __init__(self, backbone: nn.Module, readout: nn.Module, spread: Spread) -> None:
        super().__init__(backbone, readout)
        self.spread = spread

    def sample(self, x_t: State, t: Time, condition: Condition | None, noise: Noise, decoding: Decoding) -> State:
        mean = super().sample(x_t, t, condition, noise, decoding)
        return mean + self.spread(t).to(mean) * noise.normal(*mean.shape[1:])
