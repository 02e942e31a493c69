"""Exact kernels, for targets whose posterior has a closed form: the oracle of the laws of sampling."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import tmatch as tm
from tmatch.process import Transition


@dataclass(frozen=True)
class Posterior:
    """X_T | X_t of n states: a mixture with `log_weights` (n, k), `means` (n, k, d), `covariances` (k, d, d)."""

    log_weights: Tensor
    means: Tensor
    covariances: Tensor

    def mean(self) -> Tensor:
        return torch.einsum("nk,nkd->nd", self.log_weights.exp(), self.means)

    def sample(self, rng: tm.RandomStreams) -> Tensor:
        ladder = self.log_weights.exp().cumsum(-1)
        component = (rng.uniform(1).to(ladder) > ladder[:, :-1]).sum(-1)
        scale = torch.linalg.cholesky(self.covariances)[component]
        z = rng.normal(self.means.shape[-1]).to(scale)
        return self.means[torch.arange(len(z)), component] + torch.einsum("nij,nj->ni", scale, z)


@dataclass(frozen=True)
class GaussianMixture:
    """A target sum_k w_k N(mu_k, Sigma_k) over flattened states: weights (k,), means (k, d), covariances (k, d, d)."""

    weights: Tensor
    means: Tensor
    covariances: Tensor

    @classmethod
    def gaussian(cls, mean: Tensor, covariance: Tensor) -> "GaussianMixture":
        return cls(torch.ones(1, dtype=mean.dtype), mean[None], covariance[None])

    def components(self, sigma: Tensor, alpha: Tensor) -> MultivariateNormal:
        """The distribution of X_t = sigma_t Z_t + alpha_t X_T within each component."""
        noise = sigma**2 * torch.eye(self.means.shape[-1], dtype=self.means.dtype)
        return MultivariateNormal(alpha * self.means, alpha**2 * self.covariances + noise)

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
        means = self.means + torch.einsum("kij,nkj->nki", gain, off)
        return Posterior(log_weights.log_softmax(-1), means, (covariances + covariances.mT) / 2)


class ExactMean(nn.Module):
    """E[Y | X_t] as a backbone: MeanKernel(ExactMean(...), nn.Identity()) is perfectly learned flow matching."""

    def __init__(self, target: GaussianMixture, process: tm.Process, parametrization: tm.Parametrization) -> None:
        super().__init__()
        self.target, self.process, self.parametrization = target, process, parametrization

    def y(self, x_T: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """The Y of a flattened X_T; it is affine in X_T, so the mean of X_T gives the mean of Y."""
        x_T = x_T.reshape(x_t.shape).to(x_t)
        sigma, alpha = self.process.coefficients(t, x_t)
        return self.parametrization.target(Transition((x_t - alpha * x_T) / sigma, x_t, x_t, x_T, sigma, alpha))

    def posterior(self, x_t: Tensor, t: Tensor) -> Posterior:
        """X_T | X_t, at one time for the batch."""
        sigma, alpha = self.process.schedule.sigma(t.double()), self.process.schedule.alpha(t.double())
        return self.target.posterior(x_t.flatten(1).double(), sigma, alpha)

    def forward(self, x_t: Tensor, t: Tensor, condition: None = None) -> Tensor:
        (time,) = t.unique()
        return self.y(self.posterior(x_t, time).mean(), x_t, time)


class PosteriorKernel(tm.Kernel):
    """Y ~ q(. | X_t) in closed form: the kernel that perfect training would learn.

    With `per_token`, tokens have the same marginals but are independent, as with the head of DTM.
    """

    def __init__(self, exact: ExactMean, per_token: bool = False) -> None:
        super().__init__(exact)
        self.per_token = per_token

    def loss(self, *_: object) -> Tensor:
        raise AssertionError("an exact kernel is not trained")

    def sample(
        self, x_t: Tensor, t: Tensor, t_next: Tensor, condition: None, rng: tm.RandomStreams, *_: object
    ) -> Tensor:
        posterior = self.backbone.posterior(x_t, t)
        if not self.per_token:
            return self.backbone.y(posterior.sample(rng), x_t, t)
        tokens = x_t.flatten(1, -2).shape[1]
        samples = [self.backbone.y(posterior.sample(rng), x_t, t).flatten(1, -2)[:, i] for i in range(tokens)]
        return torch.stack(samples, dim=1).reshape(x_t.shape)
