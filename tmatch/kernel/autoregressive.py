"""Tokens one after the other, with a cache: ARTM and AR, and over the whole history FHTM."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from tmatch.backbone import SequenceBackbone
from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution
from tmatch.head import TimeCache
from tmatch.kernel.base import Kernel, require_independent
from tmatch.layers import grid_positions
from tmatch.parametrization import Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams, Snapshot, intermediates, progress
from tmatch.tensors import State, Time, autocast_kind


@dataclass(frozen=True)
class Prefix:
    """What stands before the tokens to draw, (batch, m, channels) at (m, 3); the first `prefix` see each other."""

    tokens: Tensor
    positions: Tensor
    prefix: int


class Autoregressive(Kernel):
    """Y^i | (t, X_t, Y^{<i}), token after token in reading order (Eq. 16): ARTM's kernel, and AR's where T = 1.

    The backbone reads [X_t, Y]: X_t sees all of itself, Y what is before it, and the output at one token is what the
    next is drawn from; so the last of X_t tells the first of Y. `dependent` allows, for an ablation, the process that
    keeps one X_0, on which such a kernel learns to read X_{t+1} off X_t.
    """

    def __init__(self, backbone: nn.Module, distribution: TokenDistribution, dependent: bool = False) -> None:
        super().__init__()
        if not hasattr(backbone, "init_cache"):
            raise ValueError(
                f"{type(backbone).__name__} has no cache to draw tokens one after the other with; take DiT or Llama, "
                "or give it the `init_cache` of tmatch.backbone.SequenceBackbone."
            )
        self.backbone = backbone
        self.distribution = distribution
        self.dependent = dependent

    @property
    def head(self) -> nn.Module | None:
        return self.distribution.head

    def opening(self, x_t: State) -> Prefix:
        """X_t."""
        positions = grid_positions(x_t.shape[1:-1], step=0, device=x_t.device)
        return Prefix(x_t.flatten(1, -2), positions, prefix=len(positions))

    def contexts(self, y: State, x_t: State, t: Time | None, condition: Condition | None) -> Tensor:
        """h^i for every token of Y from those before it, in one pass: teacher forcing."""
        opening, tokens = self.opening(x_t), self.distribution.embed(y.flatten(1, -2))
        states = tokens.shape[1] // prod(x_t.shape[1:-1])
        positions = torch.cat((opening.positions, _positions(x_t, states)))
        sequence = torch.cat((opening.tokens, tokens[:, :-1]), dim=1)
        h = self.backbone(sequence, t, condition, positions=positions[:-1], prefix=opening.prefix)
        return h[:, opening.tokens.shape[1] - 1 :]

    def loss(self, y: State, x_t: State, t: Time | None, condition: Condition | None, rng: RandomStreams) -> Tensor:
        self.distribution.require(y)
        return self.distribution.loss(y.flatten(1, -2), self.contexts(y, x_t, t, condition), t, rng).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> State:
        return next(self.states(x_t, (float(t), float(t_next)), t, condition, rng, params))

    def states(
        self,
        x_t: State,
        grid: Sequence[float],
        t: Time | None,
        condition: Condition | None,
        rng: RandomStreams,
        params: SamplingParams,
    ) -> Iterator[State]:
        """The states at the times of the grid after its first, where X_t is. The cache reads each token only once.

        Guidance is told the time, which runs from state to state as tokens are drawn; all its branches are kept, for
        each has a memory of its own.
        """
        self.distribution.require_width(x_t)
        opening, positions = self.opening(x_t), _positions(x_t, len(grid) - 1)
        branches = params.guidance.at(grid[0], condition, keep_all=True)
        first, times, given = branches.inputs(opening.tokens, t)
        backbone = cast("SequenceBackbone", self.backbone)
        with _unrecorded(x_t.device):
            cache = backbone.init_cache(times, given, len(first), len(opening.positions) + len(positions) - 1)
            h = backbone(first, positions=opening.positions, prefix=opening.prefix, cache=cache)[:, -1:]
        x, time_cache, token = x_t.flatten(1, -2).clone(), TimeCache(), None
        tokens, places_read = x.shape[1], iter(positions.split(1))
        for begin, end in pairwise(grid):
            start = self.distribution.start(rng, tokens).split(1, dim=1)
            for place in range(tokens):
                branches = params.guidance.at(progress(begin, end, place / tokens), condition, keep_all=True)
                with _unrecorded(x_t.device):
                    if token is not None:  # the one drawn last; before the first, the opening gave h
                        read = branches.stack(self.distribution.embed(token))
                        h = backbone(read, positions=next(places_read), prefix=0, cache=cache)
                    token = self.distribution(start[place], h, times, params, branches, time_cache)
                x[:, place] = token[:, 0]
                if params.observe is not None and place + 1 in intermediates(tokens):
                    at = progress(begin, end, (place + 1) / tokens)
                    params.report(self._partial(x.view_as(x_t).clone(), place + 1, at))
            yield x.view_as(x_t).clone()

    def _partial(self, x: State, drawn: int, t: float) -> Snapshot:
        """A state of which some tokens are drawn; the others show the state before, unless tokens are codes."""
        tokens = prod(x.shape[1:-1])
        known = (torch.arange(tokens, device=x.device) < drawn).expand(len(x), -1).view(x.shape[:-1])
        return Snapshot("partial", t, x, known=None if self.distribution.continuous else known)

    def check(self, process: Process, parametrization: Parametrization) -> None:
        require_independent(type(self).__name__, process, parametrization, self.dependent)


class FullHistory(Autoregressive):
    """X_{t+1}^i | (X_0, ..., X_t, X_{t+1}^{<i}): FHTM's kernel, causal over [begin, X_1, ..., X_T] (Eq. 18).

    X_0 is noise and tells nothing: a learnt token of `channels` numbers stands for it. The history tells the time, so
    neither backbone nor head is given one. Y is a whole path, (batch, T, *grid, channels).
    """

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, channels: int, dependent: bool = False
    ) -> None:
        super().__init__(backbone, distribution, dependent)
        self.begin = nn.Parameter(torch.zeros(channels))

    def opening(self, x_t: State) -> Prefix:
        """The token that begins an image."""
        begin = self.begin.to(x_t.dtype).expand(len(x_t), 1, -1)
        return Prefix(begin, torch.zeros(1, 3, device=x_t.device), prefix=0)

    def losses(self, path: State, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """The loss of each state of the path (batch, T, *grid, channels), in one pass: (batch, T)."""
        self.distribution.require(path)
        losses = self.distribution.loss(
            path.flatten(1, -2), self.contexts(path, path[:, 0], None, condition), None, rng
        )
        return losses.unflatten(1, (path.shape[1], -1)).mean(2)


def _unrecorded(device: torch.device) -> AbstractContextManager[None]:
    """Autograd keeps no book of the many small calls, which take a sixth less for it.

    Under autocast it only records nothing: in inference mode every call would cast the weights anew.
    """
    return torch.no_grad() if torch.is_autocast_enabled(autocast_kind(device)) else torch.inference_mode()


def _positions(x_t: State, states: int) -> Tensor:
    """(step, row, column) of the tokens of the states that follow X_t."""
    grid = x_t.shape[1:-1]
    return torch.cat([grid_positions(grid, step, x_t.device) for step in range(1, states + 1)])
