"""Schedules: the weights sigma_t of the noise and alpha_t of the data in X_t."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from tmatch.tensors import Time


class Schedule(ABC):
    """X_t = sigma_t Z_t + alpha_t X_T, from noise at t = 0 to data at t = 1.

    Every schedule is the linear one in other coordinates: U = X_t / (sigma_t + alpha_t) is the linear state at the time
    tau = alpha_t / (sigma_t + alpha_t), with the same ratio of data to noise.
    """

    @abstractmethod
    def sigma(self, t: Time) -> Time:
        """The weight of the noise in X_t."""

    @abstractmethod
    def alpha(self, t: Time) -> Time:
        """The weight of the data in X_t."""

    def linear_time(self, t: Time) -> Time:
        """tau = alpha_t / (sigma_t + alpha_t)."""
        return self.alpha(t) / (self.sigma(t) + self.alpha(t))

    @abstractmethod
    def from_linear_time(self, tau: Time) -> Time:
        """The t of a tau."""


@dataclass(frozen=True)
class Linear(Schedule):
    """sigma_t = 1 - t, alpha_t = t."""

    def __str__(self) -> str:
        return "linear"

    def sigma(self, t: Time) -> Time:
        return 1 - t

    def alpha(self, t: Time) -> Time:
        return t

    def linear_time(self, t: Time) -> Time:
        return t

    def from_linear_time(self, tau: Time) -> Time:
        return tau


@dataclass(frozen=True)
class Cosine(Schedule):
    """sigma_t = cos(pi t / 2), alpha_t = sin(pi t / 2)."""

    def __str__(self) -> str:
        return "cosine"

    def sigma(self, t: Time) -> Time:
        return torch.sin((1 - t) * (math.pi / 2))  # cos(pi t / 2), and exactly 0 at t = 1

    def alpha(self, t: Time) -> Time:
        return torch.sin(t * (math.pi / 2))

    def from_linear_time(self, tau: Time) -> Time:
        return torch.atan2(tau, 1 - tau) * (2 / math.pi)


@dataclass(frozen=True)
class VariancePreserving(Schedule):
    """log alpha_t = -(b1 - b0) u^2 / 4 - b0 u / 2 with u = 1 - t, sigma_t^2 + alpha_t^2 = 1: DDPM in continuous time.

    alpha_0 = 0.0066 > 0, so X_t and X_0 determine X_T at every time.
    """

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __post_init__(self) -> None:
        if not (0 <= self.beta_min <= self.beta_max < math.inf and self.beta_max > 0):
            raise ValueError(f"VariancePreserving needs 0 <= beta_min <= beta_max; got {self!r}.")

    def __str__(self) -> str:
        return "variance preserving"

    def _log_alpha(self, t: Time) -> Time:
        u = 1 - t
        return -0.25 * (self.beta_max - self.beta_min) * u**2 - 0.5 * self.beta_min * u

    def sigma(self, t: Time) -> Time:
        return (-torch.expm1(2 * self._log_alpha(t))).sqrt()

    def alpha(self, t: Time) -> Time:
        return self._log_alpha(t).exp()

    def from_linear_time(self, tau: Time) -> Time:
        """Solve (b1 - b0) u^2 / 4 + b0 u / 2 = -log alpha, with 1 / alpha^2 = 1 + ((1 - tau) / tau)^2."""
        minus_log_alpha = 0.5 * torch.log1p(((1 - tau) / tau) ** 2)
        half, square = self.beta_min / 2, (self.beta_max - self.beta_min) / 4
        u = 2 * minus_log_alpha / (half + (half**2 + 4 * square * minus_log_alpha).sqrt())
        return (1 - u).clamp(min=0)  # tau is at least that of t = 0
