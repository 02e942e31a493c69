"""Tokens a few at a time, in any order: MARTM, MAR and MaskGIT."""

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
from tmatch.kernel.base import Kernel, require_independent
from tmatch.layers import grid_positions, initialise
from tmatch.parametrization import Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams, Snapshot, Unmasking, intermediates, progress
from tmatch.tensors import State, Time

KNOWN, HIDDEN = 0, 1  # the steps at which tokens stand


class MaskingRatio(ABC):
    """Which share of the tokens is hidden in training."""

    @abstractmethod
    def __call__(self, u: Tensor) -> Tensor:
        """The share at the quantile u, in (0, 1]."""


@dataclass(frozen=True)
class CosineRatio(MaskingRatio):
    """cos(pi u / 2): MaskGIT's and MAR-Fluid's."""

    def __str__(self) -> str:
        return "cosine ratio"

    def __call__(self, u: Tensor) -> Tensor:
        return torch.cos(u * (math.pi / 2))


@dataclass(frozen=True)
class TruncatedGaussianRatio(MaskingRatio):
    """N(mode, std^2) cut to [low, 1]: MAR's."""

    mode: float = 1.0
    std: float = 0.25
    low: float = 0.7

    def __str__(self) -> str:
        return "Gaussian ratio"

    def __post_init__(self) -> None:
        if not (0 < self.std < math.inf and 0 <= self.low < 1 and math.isfinite(self.mode)):
            raise ValueError(
                f"A masking ratio has a positive std and a low end in [0, 1); got {self.mode}, {self.std}, {self.low}."
            )
        first, last = self._ends()
        if last - first < 1e-3:  # float32 would tell few of its values apart
            raise ValueError(
                f"N({self.mode}, {self.std}^2) has next to nothing in [{self.low}, 1]: move its mode, or widen it."
            )

    def __call__(self, u: Tensor) -> Tensor:
        first, last = self._ends()
        return (self.mode + self.std * math.sqrt(2) * torch.erfinv(first + (last - first) * u)).clamp(self.low, 1.0)

    def _ends(self) -> tuple[float, float]:
        """erf at the two ends."""
        low, high = (math.erf((end - self.mode) / (self.std * math.sqrt(2))) for end in (self.low, 1.0))
        return low, high


@dataclass(frozen=True)
class UnmaskStep:
    """An iteration: which tokens are known (batch, n), the order of all, how many are known before and after it."""

    known: Tensor
    rank: Tensor
    before: int
    after: int
    left: float  # share of the iterations that follow


class MaskedTokens(Kernel):
    """Y^S | (t, X_t, Y^known) for random sets S of tokens, each token on its own.

    Everything sees everything. Whether a token is known is written in the first coordinate of its position, the step:
    so a known token of zeros is not taken for a hidden one.
    """

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, ratio: MaskingRatio, dependent: bool = False
    ) -> None:
        super().__init__()
        require_positions(backbone)
        self.backbone = backbone
        self.distribution = distribution
        self.ratio = ratio
        self.dependent = dependent

    @property
    def head(self) -> nn.Module | None:
        return self.distribution.head

    @abstractmethod
    def read(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        """What the backbone reads of tokens (batch, n, channels), those `known` and those not."""

    def contexts(self, y: State, known: Tensor, x_t: State, t: Time | None, condition: Condition | None) -> Tensor:
        """h for every token of Y, (batch, tokens, width), from those `known` (batch, tokens)."""
        tokens = self.read(y.flatten(1, -2), known, x_t.flatten(1, -2))
        positions = grid_positions(y.shape[1:-1], device=y.device).repeat(len(y), 1, 1)
        positions[..., 0] = torch.where(known, KNOWN, HIDDEN)
        return self.backbone(tokens, t, condition, positions=positions)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """The sum over the hidden tokens over the number of all: each counts the same, in whatever image it is."""
        self.distribution.require(y)
        tokens = math.prod(y.shape[1:-1])
        hidden = (self.ratio(rng.uniform()) * tokens).ceil().clamp(1, tokens)
        known = ranks(rng, tokens) < tokens - hidden[:, None]
        losses = self.distribution.loss(y.flatten(1, -2), self.contexts(y, known, x_t, t, condition), t, rng)
        return (losses * ~known).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> State:
        """Hidden tokens are drawn in some iterations; guidance is told the time that each leads to, as in MAR."""
        self.distribution.require_width(x_t)
        grid, tokens = x_t.shape[1:-1], math.prod(x_t.shape[1:-1])
        rank = order_of(params.unmasking, rng, tokens)
        known = torch.zeros_like(rank, dtype=torch.bool)
        y = x_t.clone()  # what is hidden shows the state before; the backbone does not see it
        counts = unmasked(tokens, params.unmasking.iterations)
        for iteration, (before, after) in enumerate(pairwise(counts), start=1):
            at = progress(float(t), float(t_next), after / tokens)
            branches = params.guidance.at(at, condition)
            state, times, given = branches.inputs(x_t, t)
            h = self.contexts(branches.stack(y), branches.stack(known), state, times, given)
            turn = UnmaskStep(known, rank, before, after, left=1 - iteration / (len(counts) - 1))
            drawn, new = self.reveal(h, times, turn, rng, params, branches)
            y = torch.where(new[..., None], drawn, y.flatten(1, -2)).unflatten(1, grid)
            known = known | new
            if params.observe is not None and any(before < mark <= after < tokens for mark in intermediates(tokens)):
                params.report(Snapshot("partial", at, y, known=known.unflatten(1, grid)))
        return y

    def reveal(
        self,
        h: Tensor,
        t: Time | None,
        turn: UnmaskStep,
        rng: RandomStreams,
        params: SamplingParams,
        branches: Branches,
    ) -> tuple[Tensor, Tensor]:
        """Draw the tokens whose turn it is: tokens (batch, n, channels), and which of them are new (batch, n)."""
        new = (turn.rank < turn.after) & ~turn.known
        places = new.float().topk(turn.after - turn.before, dim=1).indices.sort(1).values[..., None]
        drawn = self.distribution.sample(h.take_along_dim(branches.stack(places), dim=1), t, rng, params, branches)
        everywhere = drawn.new_zeros(*new.shape, drawn.shape[-1])
        return everywhere.scatter(1, places.expand_as(drawn), drawn), new

    def check(self, process: Process, parametrization: Parametrization) -> None:
        require_independent(type(self).__name__, process, parametrization, self.dependent)


class Masked(MaskedTokens):
    """The backbone reads a linear of (X_t^i, Y^i), zeros for a hidden Y^i: MARTM's kernel, and MAR's where T = 1."""

    def __init__(
        self,
        backbone: nn.Module,
        distribution: TokenDistribution,
        channels: int,
        width: int,
        ratio: MaskingRatio,
        dependent: bool = False,
    ) -> None:
        """Tokens have `channels` numbers, and the backbone reads `width` of them: room for both X_t^i and Y^i."""
        super().__init__(backbone, distribution, ratio, dependent)
        if width < 2 * channels:
            raise ValueError(
                f"The backbone reads {width} numbers a token, too few for X_t and Y, {channels} each; build it with as "
                "many channels as it is wide."
            )
        self.join = nn.Linear(2 * channels, width)
        initialise(self.join)

    def read(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        return self.join(torch.cat((x_t, y * known[..., None]), dim=-1).to(self.join.weight.dtype))


class MaskedCodes(MaskedTokens):
    """Masked codes, read without X_t, which is noise: MaskGIT where the order is that of confidence."""

    distribution: Categorical

    def read(self, y: Tensor, known: Tensor, x_t: Tensor) -> Tensor:
        """The codes that are known, as vectors."""
        return self.distribution.embed(torch.where(known[..., None], y, 0)) * known[..., None]

    def reveal(
        self,
        h: Tensor,
        t: Time | None,
        turn: UnmaskStep,
        rng: RandomStreams,
        params: SamplingParams,
        branches: Branches,
    ) -> tuple[Tensor, Tensor]:
        """Draw every hidden token, and keep the most confident; some noise on the confidence, less of it with time."""
        if params.unmasking.order != "confidence":
            return super().reveal(h, t, turn, rng, params, branches)
        start = self.distribution.start(rng, turn.known.shape[1])
        drawn, log_p = self.distribution.draw(start, h, params.choice, branches)
        gumbel = -(-rng.uniform(turn.known.shape[1]).log()).log()
        confidence = (log_p + params.unmasking.temperature * turn.left * gumbel).masked_fill(turn.known, -torch.inf)
        chosen = confidence.topk(turn.after - turn.before, dim=1).indices
        return drawn, torch.zeros_like(turn.known).scatter(1, chosen, True)


def require_positions(backbone: nn.Module) -> None:
    """Refuse a backbone that could not tell a hidden token from a known one."""
    if "positions" not in signature(backbone.forward).parameters:
        raise ValueError(
            f"{type(backbone).__name__} takes no positions, by which a hidden token is told from a known one; "
            "take a DiT, or give its `forward` the keyword `positions`, (batch, tokens, 3)."
        )


def ranks(rng: RandomStreams, tokens: int) -> Tensor:
    """A random order for each image, (batch, tokens): the place of every token in it."""
    return rng.uniform(tokens).argsort(1).argsort(1)


def order_of(unmasking: Unmasking, rng: RandomStreams, tokens: int) -> Tensor:
    """The order in which tokens are drawn, (batch, tokens)."""
    if unmasking.order == "raster":
        return torch.arange(tokens, device=rng.device).expand(len(rng), -1)
    return ranks(rng, tokens)


def unmasked(tokens: int, iterations: int | None) -> list[int]:
    """How many tokens are known before the first iteration and after each: 1 - cos(pi k / 2K) of them, one at least."""
    count = tokens if iterations is None else iterations
    if count > tokens:
        raise ValueError(f"{tokens} tokens are drawn in at most {tokens} iterations, one each; asked for {count}.")
    known = [0]
    for k in range(1, count + 1):
        hidden = int(tokens * math.cos(math.pi / 2 * k / count))
        known.append(tokens - max(count - k, min(hidden, tokens - known[-1] - 1)))
    return known
