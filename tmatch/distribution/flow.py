"""Continuous tokens by flow matching."""

import torch
from torch import Tensor

from tmatch.distribution.base import TokenDistribution, require_contexts
from tmatch.guidance import Branches
from tmatch.head import Head, TimeCache
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.solver import FixedStep
from tmatch.tensors import Time, expand_like, positive_int
from tmatch.times import Density, Uniform


class Flow(TokenDistribution):
    """p(B | h) by flow matching: B_s = (1 - s) B_0 + s B, dB_s/ds = g_{s,t}(B_s, h) (Eqs. 8 and 9).

    In training each token gets `samples_per_token` pairs (s, B_0); with a joint head, all tokens of an image share s.
    """

    head: Head

    def __init__(self, head: Head, samples_per_token: int = 1, density: Density = Uniform()) -> None:
        super().__init__()
        self.head = head
        self.channels = head.channels
        self.samples_per_token = positive_int("samples_per_token", samples_per_token)
        self.density = density

    def loss(self, b: Tensor, h: Tensor, t: Time | None, rng: RandomStreams) -> Tensor:
        """|g_{s,t}(B_s, h) - (B - B_0)|^2 of each token."""
        b_0, b_s, s = self.interpolate(b, rng)
        return self.regression(b_s, s, h, t, b.unsqueeze(1) - b_0)

    def interpolate(self, b: Tensor, rng: RandomStreams) -> tuple[Tensor, Tensor, Tensor]:
        """(B_0, B_s, s) with B_0 and B_s (B, S, N, C), for tokens b (B, N, C)."""
        self.require_width(b)
        b = b.unsqueeze(1)
        b_0 = rng.normal(self.samples_per_token, *b.shape[2:])
        s = self.density.sample(rng, self.samples_per_token, *(() if self.head.joint else b.shape[2:-1]))
        w = expand_like(s, b).to(b.dtype)
        return b_0, (1 - w) * b_0 + w * b, s

    def regression(self, b_s: Tensor, s: Tensor, h: Tensor, t: Time | None, target: Tensor) -> Tensor:
        """|g_{s,t}(B_s, h) - target|^2 of each token, for targets (B, S, N, C)."""
        require_contexts(h, b_s[:, 0])
        u = self.head(b_s, s, self.head.prepare(h.unsqueeze(1), t))
        return (u - target).square().mean(-1).mean(1)

    def base_noise(self, rng: RandomStreams, tokens: int) -> Tensor:
        """B_0 ~ N(0, I)."""
        return rng.normal(tokens, self.channels)

    def forward(
        self, noise: Tensor, h: Tensor, t: Time | None, params: SamplingParams, branches: Branches,
        cache: TimeCache | None = None,
    ) -> Tensor:  # fmt: skip
        """B from B_0, along the guided velocity."""
        # An adaptive solver visits other times for every token; a compiler folds the time features into constants.
        cached = isinstance(params.solver, FixedStep) and not torch.compiler.is_compiling()
        context = self.head.prepare(h.unsqueeze(1), t, cache if cached else None)
        velocity = branches.guide(lambda s, b_s: self.head(b_s, s, context))
        return params.solver.solve(velocity, noise.unsqueeze(1)).squeeze(1)

    def nfe(self, params: SamplingParams) -> int | None:
        return params.solver.calls if isinstance(params.solver, FixedStep) else None
