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

    Every kernel that draws continuous tokens rests on this pair of functions. A token is drawn by itself; in
    training each gets `samples_per_token` pairs of its own (s, B_0).
    """

    head: Head

    def __init__(self, head: Head, samples_per_token: int = 1, density: Density = Uniform()) -> None:
        super().__init__()
        self.head = head
        self.channels = head.channels
        self.samples_per_token = positive_int("The number of draws a token", samples_per_token)
        self.density = density

    def loss(self, b: Tensor, h: Tensor, t: Time | None, rng: RandomStreams) -> Tensor:
        """|g_{s,t}(B_s, h) - (B - B_0)|^2 for each token, (batch, *tokens)."""
        self.require_width(b)
        require_contexts(h, b)
        b, h = b.unsqueeze(1), h.unsqueeze(1)  # (batch, draws, *tokens, channels)
        b_0 = rng.normal(self.samples_per_token, *b.shape[2:])
        s = self.density.sample(rng, self.samples_per_token, *b.shape[2:-1])
        token_fraction = expand_like(s, b).to(b.dtype)
        b_s = (1 - token_fraction) * b_0 + token_fraction * b
        u = self.head(b_s, s, self.head.prepare(h, t))
        return (u - (b - b_0)).square().mean(-1).mean(1)

    def start(self, rng: RandomStreams, *tokens: int) -> Tensor:
        """B_0 ~ N(0, I)."""
        return rng.normal(*tokens, self.head.channels)

    def forward(
        self,
        b_0: Tensor,
        h: Tensor,
        t: Time | None,
        params: SamplingParams,
        branches: Branches,
        time_cache: TimeCache | None = None,
    ) -> Tensor:
        """B from B_0, along the guided velocity."""
        solver = params.solver
        fixed = isinstance(solver, FixedStep)  # an adaptive one comes to other times at every token
        keeps = fixed and not torch.compiler.is_compiling()  # compiled, what the times say is constant anyway
        context = self.head.prepare(h, t, time_cache if keeps else None)
        return solver.solve(branches.guide(lambda s, b_s: self.head(b_s, s, context)), b_0)
