"""A Gaussian around the mean: DDPM."""

from collections.abc import Callable

import torch
from torch import nn

from tmatch.condition import Condition
from tmatch.kernel.mean import MeanKernel
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time

Std = Callable[[Time], Time]  # t -> w_t


class GaussianKernel(MeanKernel):
    """Y | X_t ~ N(E[Y | X_t], w_t^2 I): epsilon- and x-prediction; `std` is w_t, given and not learned.

    w_t = 0 (None) on the diffusion process is DDPM with variance beta-tilde; `unit_data_std` gives the variance beta.
    """

    def __init__(self, backbone: nn.Module, readout: nn.Module, std: Std | None = None) -> None:
        super().__init__(backbone, readout)
        self.std = std

    def mean_and_residual(
        self, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> tuple[State, State | float]:
        mean = self.guided_mean(x_t, t, condition, params)
        noise = rng.normal(*mean.shape[1:])
        return mean, 0.0 if self.std is None else self.std(t).to(mean) * noise

    def check(self, process: Process, parametrization: Parametrization) -> None:
        super().check(process, parametrization)
        if self.std is not None and process.noise_kept == "all":
            raise ValueError("A std on a process that keeps X_0 adds variance that no drift removes; pass std=None.")


def unit_data_std(process: Process, parametrization: Parametrization) -> Std:
    """The w_t that is exact for data N(0, I): on the diffusion process, DDPM with its larger variance, beta.

    Given X_t, (Z_t, X_T) varies along (alpha_t, -sigma_t) / sqrt(sigma_t^2 + alpha_t^2), and Y is linear in it. The
    last step has noise too, as in Algorithm 2; Ho et al. omit it, which matters at few steps.
    """
    if isinstance(parametrization, NextState):
        raise ValueError("The std of the next state depends on the step size; predict NoiseState or CleanState.")

    def std(t: Time) -> Time:
        sigma, alpha = process.schedule.sigma(t), process.schedule.alpha(t)
        r = (sigma**2 + alpha**2).sqrt()
        zero = torch.zeros_like(r)
        return parametrization.target(Transition(alpha / r, zero, zero, -sigma / r, sigma, alpha)).abs()

    return std
