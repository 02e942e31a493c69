"""A Gaussian of given spread around the mean: DDPM and DDIM."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from tmatch.condition import Condition
from tmatch.kernel.mean import MeanKernel
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time


class Spread(ABC):
    """The standard deviation w_t of the Gaussian kernel."""

    @abstractmethod
    def __call__(self, t: Time) -> Time:
        """w_t."""

    def check(self, process: Process, parametrization: Parametrization) -> None:  # noqa: B027
        """Refuse choices that this spread was not made for."""


@dataclass(frozen=True)
class NoSpread(Spread):
    """w_t = 0: DDIM on a process with one X_0, DDPM with variance beta-tilde on the diffusion process."""

    def __call__(self, t: Time) -> Time:
        return torch.zeros_like(t)


@dataclass(frozen=True)
class UnitDataSpread(Spread):
    """The w_t that is exact for N(0, I) data: on the diffusion process, DDPM with its larger variance, beta.

    Given X_t, (Z_t, X_T) varies along (alpha_t, -sigma_t) / sqrt(sigma_t^2 + alpha_t^2), and Y is linear in it. The
    last step keeps its w_t too, as Algorithm 2 has it; Ho et al. leave that noise out, and at few steps it shows.
    """

    process: Process
    parametrization: Parametrization

    def __call__(self, t: Time) -> Time:
        sigma, alpha = self.process.schedule.sigma(t), self.process.schedule.alpha(t)
        r = (sigma**2 + alpha**2).sqrt()
        nothing = torch.zeros_like(r)
        return self.parametrization.target(Transition(alpha / r, nothing, nothing, -sigma / r, sigma, alpha)).abs()

    def check(self, process: Process, parametrization: Parametrization) -> None:
        if process != self.process or type(parametrization) is not type(self.parametrization):
            raise ValueError("The spread was made for another process or another Y; give it those of the model.")
        if isinstance(parametrization, NextState):
            raise ValueError("The spread of the next state depends on the step; predict NoiseState or CleanState.")
        if process.noise_kept == "all":
            raise ValueError(
                f"A spread on {type(process).__name__}, whose X_0 is kept, adds variance that no drift takes back; "
                "use DiffusionProcess, or NoSpread."
            )


class GaussianKernel(MeanKernel):
    """Y | X_t ~ N(E[Y | X_t], w_t^2 I): epsilon- and x-prediction; w_t is set, not learnt."""

    def __init__(self, backbone: nn.Module, readout: nn.Module, spread: Spread = NoSpread()) -> None:
        super().__init__(backbone, readout)
        self.spread = spread

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> State:
        mean = super().sample(x_t, t, t_next, condition, rng, params)
        return mean + self.spread(t).to(mean) * rng.normal(*mean.shape[1:])

    def check(self, process: Process, parametrization: Parametrization) -> None:
        super().check(process, parametrization)
        self.spread.check(process, parametrization)
