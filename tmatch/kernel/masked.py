"""A few tokens per iteration, in any order: MARTM, MAR and MaskGIT."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise

import torch
from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution
from tmatch.distribution.categorical import Categorical
from tmatch.guidance import Branches
from tmatch.kernel.base import SequentialKernel
from tmatch.layers import grid_positions, initialise
from tmatch.rng import RandomStreams
from tmatch.sampling import Callback, SamplingParams, Snapshot, intermediates
from tmatch.tensors import State, Time

KNOWN, HIDDEN = 0, 1  # the step coordinate of a token


MaskingRatio = Callable[[Tensor], Tensor]
"""The fraction of tokens that are hidden in training, in (0, 1], at the quantile u."""


@dataclass(frozen=True)
class CosineRatio:
    """cos(pi u / 2): MaskGIT's and MAR-Fluid's."""

    def __str__(self) -> str:
        return "cosine ratio"

    def __call__(self, u: Tensor) -> Tensor:
        return torch.cos(u * (math.pi / 2))


@dataclass(frozen=True)
class TruncatedGaussianRatio:
    """N(mode, std^2) truncated to [low, 1]: MAR's."""

    mode: float = 1.0
    std: float = 0.25
    low: float = 0.7

    def __str__(self) -> str:
        return "Gaussian ratio"

    def __post_init__(self) -> None:
        if not (self.std > 0 and self._erf(1.0) - self._erf(self.low) > 1e-3):  # float32 resolves a few values of less
            raise ValueError(f"A masking ratio needs a positive std and more mass in [low, 1]; got {self!r}.")

    def __call__(self, u: Tensor) -> Tensor:
        first, last = self._erf(self.low), self._erf(1.0)
        return (self.mode + self.std * math.sqrt(2) * torch.erfinv(first + (last - first) * u)).clamp(self.low, 1.0)

    def _erf(self, ratio: float) -> float:
        return math.erf((ratio - self.mode) / (self.std * math.sqrt(2)))


@dataclass(frozen=True)
class UnmaskStep:
    """One iteration: the tokens known so far (batch, n), the rank of each in the order, the counts before and after."""

    known: Tensor
    rank: Tensor
    before: int
    after: int
    remaining: float  # fraction of the iterations still to come


class MaskedTokens(SequentialKernel):
    """Y^S | (t, X_t, Y^known) for random sets S of tokens, independent given the known ones.

    Attention is full. The first coordinate of a token's position, the step, tells whether it is known, so that a known
    token of zeros differs from a hidden one.
    """

    def __init__(self, backbone: nn.Module, distribution: TokenDistribution, ratio: MaskingRatio) -> None:
        super().__init__(backbone, distribution)
        if "positions" not in signature(backbone.forward).parameters:
            raise ValueError(f"{type(backbone).__name__} takes no positions, which mark hidden tokens; use a DiT.")
        self.ratio = ratio

    @abstractmethod
    def embed_inputs(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        """The backbone's input for tokens (batch, n, channels), of which some are `known`."""

    def contexts(self, y: State, known: Tensor, x_t: State, t: Time | None, condition: Condition | None) -> Tensor:
        """h for every token of Y, (batch, tokens, width), from those `known` (batch, tokens)."""
        tokens = self.embed_inputs(y.flatten(1, -2), known, x_t.flatten(1, -2))
        positions = grid_positions(y.shape[1:-1], device=y.device).repeat(len(y), 1, 1)
        positions[..., 0] = torch.where(known, KNOWN, HIDDEN)
        return self.backbone(tokens, t, condition, positions=positions)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """The sum over hidden tokens divided by the number of all tokens, so that all hidden tokens weigh the same."""
        self.distribution.require(y)
        tokens = math.prod(y.shape[1:-1])
        hidden = (self.ratio(rng.uniform()) * tokens).ceil().clamp(1, tokens)
        known = random_ranks(rng, tokens) < tokens - hidden[:, None]
        losses = self.distribution.loss(y.flatten(1, -2), self.contexts(y, known, x_t, t, condition), t, rng)
        return (losses * ~known).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        """Guidance sees the time at the end of each iteration, as in MAR; the head's solver that at its start."""
        self.distribution.require_width(x_t)
        grid, tokens = x_t.shape[1:-1], math.prod(x_t.shape[1:-1])
        in_order = torch.arange(tokens, device=rng.device).expand(len(rng), -1)
        rank = in_order if params.unmasking.order == "raster" else random_ranks(rng, tokens)
        known = torch.zeros_like(rank, dtype=torch.bool)
        y = x_t.clone()  # hidden tokens show the state before; the backbone does not see them
        counts = known_counts(tokens, params.unmasking.iterations)
        for iteration, (before, after) in enumerate(pairwise(counts), start=1):
            start, at = (float(t) + (float(t_next) - float(t)) * (count / tokens) for count in (before, after))
            branches = params.guidance.at(at, condition)
            state, times, given = branches.inputs(x_t, t)
            h = self.contexts(branches.stack(y), branches.stack(known), state, times, given)
            step = UnmaskStep(known, rank, before, after, remaining=1 - iteration / (len(counts) - 1))
            sampled, new = self.unmask(h, times, step, rng, params.at(before / tokens, start), branches)
            y = torch.where(new[..., None], sampled, y.flatten(1, -2)).unflatten(1, grid)
            known = known | new
            if callback is not None and any(before < mark <= after < tokens for mark in intermediates(tokens)):
                callback(Snapshot("partial", at, y, known=known.unflatten(1, grid)))
        return y

    def unmask(
        self, h: Tensor, t: Time | None, step: UnmaskStep, rng: RandomStreams, params: SamplingParams,
        branches: Branches,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Sample the tokens of this iteration: tokens (batch, n, channels), and which of them are new (batch, n)."""
        new = (step.rank < step.after) & ~step.known
        index = new.float().topk(step.after - step.before, dim=1).indices.sort(1).values[..., None]
        sampled = self.distribution.sample(h.take_along_dim(branches.stack(index), dim=1), t, rng, params, branches)
        everywhere = sampled.new_zeros(*new.shape, sampled.shape[-1])
        return everywhere.scatter(1, index.expand_as(sampled), sampled), new


class Masked(MaskedTokens):
    """The backbone reads a linear map of (X_t^i, Y^i), with zeros for a hidden Y^i: MARTM, and MAR with T = 1."""

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, channels: int, width: int, ratio: MaskingRatio
    ) -> None:
        """Tokens have `channels` numbers; the backbone reads `width`, enough for both X_t^i and Y^i."""
        super().__init__(backbone, distribution, ratio)
        if width < 2 * channels:
            raise ValueError(f"A backbone of {width} channels has too few for X_t and Y with {channels} each.")
        self.join = nn.Linear(2 * channels, width)
        initialise(self.join)

    def embed_inputs(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        return self.join(torch.cat((x_t, y * known[..., None]), dim=-1).to(self.join.weight.dtype))


class MaskedCodes(MaskedTokens):
    """Masked codes, read without X_t, which is noise: MaskGIT, in the order of confidence."""

    distribution: Categorical

    def embed_inputs(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        return self.distribution.embed(torch.where(known[..., None], y, 0)) * known[..., None]

    def unmask(
        self, h: Tensor, t: Time | None, step: UnmaskStep, rng: RandomStreams, params: SamplingParams,
        branches: Branches,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Sample every hidden token and keep the most confident, with Gumbel noise that decays over the iterations."""
        if params.unmasking.order != "confidence":
            return super().unmask(h, t, step, rng, params, branches)
        noise = self.distribution.base_noise(rng, step.known.shape[1])
        sampled, log_p = self.distribution.sample_codes(noise, h, params.codes, branches)
        gumbel = -(-rng.uniform(step.known.shape[1]).log()).log()
        confidence = log_p + params.unmasking.temperature * step.remaining * gumbel
        kept = confidence.masked_fill(step.known, -torch.inf).topk(step.after - step.before, dim=1).indices
        return sampled, torch.zeros_like(step.known).scatter(1, kept, True)


def random_ranks(rng: RandomStreams, tokens: int) -> Tensor:
    """A random permutation for each image, (batch, tokens): the rank of every token."""
    return rng.uniform(tokens).argsort(1).argsort(1)


def known_counts(tokens: int, iterations: int | None) -> list[int]:
    """How many tokens are known at first and after each iteration: 1 - cos(pi k / 2K) of them, at least one more."""
    count = tokens if iterations is None else iterations
    if count > tokens:
        raise ValueError(f"{tokens} tokens allow at most {tokens} mask iterations; got {count}.")
    known = [0]
    for k in range(1, count + 1):
        hidden = int(tokens * math.cos(math.pi / 2 * k / count))
        known.append(tokens - max(count - k, min(hidden, tokens - known[-1] - 1)))
    return known
