"""A few tokens per iteration, in any order: MARTM, MAR and MaskGIT."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise

import torch
from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution
from tmatch.distribution.categorical import Categorical
from tmatch.guidance import Branches
from tmatch.kernel.base import Kernel, reject_joint, require_independent
from tmatch.layers import grid_positions, initialise
from tmatch.parametrization import Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampling import Callback, SamplingParams, Snapshot, Unmasking, intermediates, interpolate_time
from tmatch.tensors import State, Time

KNOWN, HIDDEN = 0, 1  # the step coordinate of a token


class MaskingRatio(ABC):
    """The fraction of tokens that are hidden in training."""

    @abstractmethod
    def __call__(self, u: Tensor) -> Tensor:
        """The fraction at the quantile u, in (0, 1]."""


@dataclass(frozen=True)
class CosineRatio(MaskingRatio):
    """cos(pi u / 2): MaskGIT's and MAR-Fluid's."""

    def __str__(self) -> str:
        return "cosine ratio"

    def __call__(self, u: Tensor) -> Tensor:
        return torch.cos(u * (math.pi / 2))


@dataclass(frozen=True)
class TruncatedGaussianRatio(MaskingRatio):
    """N(mode, std^2) truncated to [low, 1]: MAR's."""

    mode: float = 1.0
    std: float = 0.25
    low: float = 0.7

    def __str__(self) -> str:
        return "Gaussian ratio"

    def __post_init__(self) -> None:
        if not (0 < self.std < math.inf and 0 <= self.low < 1 and math.isfinite(self.mode)):
            raise ValueError(
                f"A masking ratio needs a positive std and low in [0, 1); got {self.mode}, {self.std}, {self.low}."
            )
        first, last = self._ends()
        if last - first < 1e-3:  # float32 could represent only a few of its values
            raise ValueError(
                f"N({self.mode}, {self.std}^2) has almost no mass in [{self.low}, 1]; change its mode or std."
            )

    def __call__(self, u: Tensor) -> Tensor:
        first, last = self._ends()
        return (self.mode + self.std * math.sqrt(2) * torch.erfinv(first + (last - first) * u)).clamp(self.low, 1.0)

    def _ends(self) -> tuple[float, float]:
        """erf at both ends."""
        low, high = (math.erf((end - self.mode) / (self.std * math.sqrt(2))) for end in (self.low, 1.0))
        return low, high


@dataclass(frozen=True)
class UnmaskStep:
    """One iteration: the tokens known so far (batch, n), the rank of each in the order, the counts before and after."""

    known: Tensor
    rank: Tensor
    before: int
    after: int
    remaining: float  # fraction of the iterations still to come


class MaskedTokens(Kernel):
    """Y^S | (t, X_t, Y^known) for random sets S of tokens, independent given the known ones.

    Attention is full. The first coordinate of a token's position, the step, tells whether it is known, so that a known
    token of zeros differs from a hidden one.
    """

    distribution: TokenDistribution

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, ratio: MaskingRatio, dependent: bool = False
    ) -> None:
        super().__init__(backbone, distribution)
        reject_joint(type(self).__name__, distribution)
        require_positions(backbone)
        self.ratio = ratio
        self.dependent = dependent

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
        """Guidance sees the time at the end of each iteration, as in MAR."""
        self.distribution.require_width(x_t)
        grid, tokens = x_t.shape[1:-1], math.prod(x_t.shape[1:-1])
        rank = token_ranks(params.unmasking, rng, tokens)
        known = torch.zeros_like(rank, dtype=torch.bool)
        y = x_t.clone()  # hidden tokens show the state before; the backbone does not see them
        counts = known_counts(tokens, params.unmasking.iterations)
        for iteration, (before, after) in enumerate(pairwise(counts), start=1):
            at = interpolate_time(float(t), float(t_next), after / tokens)
            branches = params.guidance.at(at, condition)
            state, times, given = branches.inputs(x_t, t)
            h = self.contexts(branches.stack(y), branches.stack(known), state, times, given)
            step = UnmaskStep(known, rank, before, after, remaining=1 - iteration / (len(counts) - 1))
            sampled, new = self.unmask(h, times, step, rng, params, branches)
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

    def check(self, process: Process, parametrization: Parametrization) -> None:
        require_independent(type(self).__name__, process, parametrization, self.dependent)


class Masked(MaskedTokens):
    """The backbone reads a linear map of (X_t^i, Y^i), with zeros for a hidden Y^i: MARTM, and MAR with T = 1."""

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, channels: int, width: int, ratio: MaskingRatio,
        dependent: bool = False,
    ) -> None:  # fmt: skip
        """Tokens have `channels` numbers; the backbone reads `width`, enough for both X_t^i and Y^i."""
        super().__init__(backbone, distribution, ratio, dependent)
        if width < 2 * channels:
            raise ValueError(
                f"The backbone reads {width} channels, too few for X_t and Y with {channels} each; build it with as "
                "many channels as its width."
            )
        self.join = nn.Linear(2 * channels, width)
        initialise(self.join)

    def embed_inputs(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        return self.join(torch.cat((x_t, y * known[..., None]), dim=-1).to(self.join.weight.dtype))


class MaskedCodes(MaskedTokens):
    """Masked codes, read without X_t, which is noise: MaskGIT, in the order of confidence."""

    distribution: Categorical

    def embed_inputs(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        """The embeddings of the known codes, and zeros."""
        return self.distribution.embed(torch.where(known[..., None], y, 0)) * known[..., None]

    def unmask(
        self, h: Tensor, t: Time | None, step: UnmaskStep, rng: RandomStreams, params: SamplingParams,
        branches: Branches,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Sample every hidden token and keep the most confident, with Gumbel noise that decays over the iterations."""
        if params.unmasking.order != "confidence":
            return super().unmask(h, t, step, rng, params, branches)
        noise = self.distribution.base_noise(rng, step.known.shape[1])
        sampled, log_p = self.distribution.draw(noise, h, params.codes, branches)
        gumbel = -(-rng.uniform(step.known.shape[1]).log()).log()
        confidence = log_p + params.unmasking.temperature * step.remaining * gumbel
        kept = confidence.masked_fill(step.known, -torch.inf).topk(step.after - step.before, dim=1).indices
        return sampled, torch.zeros_like(step.known).scatter(1, kept, True)


def require_positions(backbone: nn.Module) -> None:
    """Raise if the backbone takes no positions, which tell hidden tokens from known ones."""
    if "positions" not in signature(backbone.forward).parameters:
        raise ValueError(
            f"{type(backbone).__name__} takes no positions, which tell hidden tokens from known ones; use a DiT, or "
            "add the keyword `positions`, (batch, tokens, 3), to its `forward`."
        )


def random_ranks(rng: RandomStreams, tokens: int) -> Tensor:
    """A random permutation for each image, (batch, tokens): the rank of every token."""
    return rng.uniform(tokens).argsort(1).argsort(1)


def token_ranks(unmasking: Unmasking, rng: RandomStreams, tokens: int) -> Tensor:
    """The rank of every token in the sampling order, (batch, tokens)."""
    if unmasking.order == "raster":
        return torch.arange(tokens, device=rng.device).expand(len(rng), -1)
    return random_ranks(rng, tokens)


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
