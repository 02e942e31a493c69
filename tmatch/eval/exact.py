"""Exact kernels, for targets whose posterior has a closed form.

They test samplers against closed forms, and separate the three sources of error: learning, the solver of the head, and
tokens sampled independently.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from tmatch.condition import Condition
from tmatch.kernel import Kernel
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time


@dataclass(frozen=True)
class Posterior:
    """X_T | X_t of n states: a mixture with `log_weights` (n, k), `means` (n, k, d), `covariances` (k, d, d)."""

    log_weights: Tensor
    means: Tensor
    covariances: Tensor

    def mean(self) -> Tensor:
        """E[X_T | X_t], (n, d)."""
        return torch.einsum("nk,nkd->nd", self.log_weights.exp(), self.means)

    def sample(self, rng: RandomStreams) -> Tensor:
        """X_T ~ q(. | X_t), (n, d)."""
        ladder = self.log_weights.exp().cumsum(-1)
        component = (rng.uniform(1).to(ladder) > ladder[:, :-1]).sum(-1)
        scale = torch.linalg.cholesky(self.covariances)[component]
        z = rng.normal(self.means.shape[-1]).to(scale)
        return self.means[torch.arange(len(z), device=z.device), component] + torch.einsum("nij,nj->ni", scale, z)


@dataclass(frozen=True)
class GaussianMixture:
    """A target sum_k w_k N(mu_k, Sigma_k) over flattened states: weights (k,), means (k, d), covariances (k, d, d)."""

    weights: Tensor
    means: Tensor
    covariances: Tensor

    def __post_init__(self) -> None:
        for name in ("weights", "means", "covariances"):
            object.__setattr__(self, name, getattr(self, name).double())

    @classmethod
    def gaussian(cls, mean: Tensor, covariance: Tensor) -> "GaussianMixture":
        """A single Gaussian."""
        return cls(torch.ones(1, dtype=mean.dtype), mean[None], covariance[None])

    def components(self, sigma: Tensor, alpha: Tensor) -> MultivariateNormal:
        """The distribution of X_t = sigma_t Z_t + alpha_t X_T within each component."""
        covariance = alpha**2 * self.covariances + sigma**2 * torch.eye(
            self.means.shape[-1], dtype=self.means.dtype, device=self.means.device
        )
        return MultivariateNormal(alpha * self.means, covariance)

    def log_prob(self, x_t: Tensor, sigma: Tensor, alpha: Tensor) -> Tensor:
        """log q_t(x_t), (n,)."""
        return (self.weights.log() + self.components(sigma, alpha).log_prob(x_t[:, None])).logsumexp(-1)

    def posterior(self, x_t: Tensor, sigma: Tensor, alpha: Tensor) -> Posterior:
        """X_T given X_t = x_t (n, d), by Bayes' rule."""
        components = self.components(sigma, alpha)
        gain = alpha * torch.linalg.solve(components.covariance_matrix, self.covariances).mT
        off = x_t[:, None] - components.mean
        log_weights = self.weights.log() + components.log_prob(x_t[:, None])
        covariances = self.covariances - alpha * gain @ self.covariances
        return Posterior(
            log_weights.log_softmax(-1),
            self.means + torch.einsum("kij,nkj->nki", gain, off),
            (covariances + covariances.mT) / 2,
        )


class ExactMean(nn.Module):
    """E[Y | X_t] in closed form, as a backbone.

    MeanKernel(ExactMean(...), nn.Identity()) is perfectly learned flow matching.
    """

    def __init__(self, target: GaussianMixture, process: Process, parametrization: Parametrization) -> None:
        super().__init__()
        self.target = target
        self.process = process
        self.parametrization = parametrization

    def y(self, x_T: Tensor, x_t: State, t: Time) -> State:
        """The Y of a flattened X_T; it is affine in X_T, so the mean of X_T gives the mean of Y."""
        x_T = x_T.reshape(x_t.shape).to(x_t)
        sigma, alpha = self.process.coefficients(t, x_t)
        return self.parametrization.target(Transition((x_t - alpha * x_T) / sigma, x_t, x_t, x_T, sigma, alpha))

    def posterior(self, x_t: State, t: Time) -> Posterior:
        """X_T | X_t, at one time for the whole batch."""
        sigma, alpha = self.process.schedule.sigma(t.double()), self.process.schedule.alpha(t.double())
        return self.target.posterior(x_t.flatten(1).double(), sigma, alpha)

    def forward(self, x_t: State, t: Time, condition: Condition | None = None) -> State:
        """E[Y | X_t], one time after the other."""
        mean = torch.empty_like(x_t)
        for time in t.unique():
            at = t == time
            mean[at] = self.y(self.posterior(x_t[at], time).mean(), x_t[at], time)
        return mean


class PosteriorKernel(Kernel):
    """Y ~ q(. | X_t) in closed form: the kernel that perfect training would learn.

    With `per_token`, tokens have the same marginals but are independent, as with the head of DTM: token i comes from a
    joint sample of its own.
    """

    def __init__(self, exact: ExactMean, per_token: bool = False) -> None:
        super().__init__(exact)
        self.backbone: ExactMean
        self.per_token = per_token

    def check(self, process: Process, parametrization: Parametrization) -> None:
        mine = self.backbone
        if process != mine.process or type(parametrization) is not type(mine.parametrization):
            raise ValueError("This kernel is exact for another process or another Y; build it with those of the model.")
        if isinstance(parametrization, NextState):
            raise ValueError("The next state depends on the step, but this kernel only knows X_T; use another Y.")

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """The squared distance to the mean: the least that any regression can reach."""
        return (self.backbone(x_t, t) - y).square().flatten(1).mean(1)

    def sample(
        self,
        x_t: State,
        t: Time,
        t_next: Time,
        condition: Condition | None,
        rng: RandomStreams,
        params: SamplingParams,
        callback: object = None,
    ) -> State:
        posterior = self.backbone.posterior(x_t, t)
        if not self.per_token:
            return self.backbone.y(posterior.sample(rng), x_t, t)
        tokens = x_t.flatten(1, -2).shape[1]
        samples = [self.backbone.y(posterior.sample(rng), x_t, t).flatten(1, -2)[:, i] for i in range(tokens)]
        return torch.stack(samples, dim=1).reshape(x_t.shape)
