"""Token after token, with a KV cache: ARTM and AR, and over the full history FHTM."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from math import prod
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from tmatch.backbone import SequenceBackbone
from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution
from tmatch.head import TimeCache
from tmatch.kernel.base import SequentialKernel
from tmatch.layers import grid_positions
from tmatch.rng import RandomStreams
from tmatch.sampling import Callback, SamplingParams, Snapshot, intermediates
from tmatch.tensors import State, Time, autocast_kind


class Prefix(NamedTuple):
    """The tokens before those to sample, (batch, m, channels) at (m, 3); the first `bidirectional` see each other."""

    tokens: Tensor
    positions: Tensor
    bidirectional: int


class Autoregressive(SequentialKernel):
    """Y^i | (t, X_t, Y^{<i}), token after token in raster order (Eq. 16): ARTM's kernel, and AR's with T = 1.

    The backbone reads [X_t, Y]: X_t sees all of itself, Y sees what is before it, and the output at one token is the
    context of the next; so the last token of X_t gives the context of the first of Y.
    """

    def __init__(self, backbone: nn.Module, distribution: TokenDistribution, dependent: bool = False) -> None:
        super().__init__(backbone, distribution, dependent)
        if not hasattr(backbone, "init_cache"):
            raise ValueError(
                f"{type(backbone).__name__} has no KV cache, which sampling token after token needs; use DiT or Llama, "
                "or implement `init_cache` of tmatch.backbone.SequenceBackbone."
            )

    def prefix(self, x_t: State) -> Prefix:
        positions = grid_positions(x_t.shape[1:-1], step=0, device=x_t.device)
        return Prefix(x_t.flatten(1, -2), positions, bidirectional=len(positions))

    def contexts(self, y: State, x_t: State, t: Time | None, condition: Condition | None) -> Tensor:
        """h^i for every token of Y from those before it, in one pass: teacher forcing."""
        prefix, tokens = self.prefix(x_t), self.distribution.embed(y.flatten(1, -2))
        states = tokens.shape[1] // prod(x_t.shape[1:-1])
        positions = torch.cat((prefix.positions, _positions(x_t, states)))
        sequence = torch.cat((prefix.tokens, tokens[:, :-1]), dim=1)
        h = self.backbone(sequence, t, condition, positions=positions[:-1], prefix=prefix.bidirectional)
        return h[:, prefix.tokens.shape[1] - 1 :]

    def loss(self, y: State, x_t: State, t: Time | None, condition: Condition | None, rng: RandomStreams) -> Tensor:
        self.distribution.require(y)
        return self.distribution.loss(y.flatten(1, -2), self.contexts(y, x_t, t, condition), t, rng).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        return next(self.states(x_t, (float(t), float(t_next)), t, condition, rng, params, callback))

    def states(
        self, x_t: State, grid: Sequence[float], t: Time | None, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> Iterator[State]:  # fmt: skip
        """The states at the times of the grid after the first; guidance sees a time that advances with the tokens."""
        self.distribution.require_width(x_t)
        prefix, positions = self.prefix(x_t), _positions(x_t, len(grid) - 1)
        branches = params.guidance.at(grid[0], condition, keep_all=True)
        first, times, given = branches.inputs(prefix.tokens, t)
        backbone = cast("SequenceBackbone", self.backbone)
        with _unrecorded(x_t.device):
            cache = backbone.init_cache(times, given, len(first), len(prefix.positions) + len(positions) - 1)
            h = backbone(first, positions=prefix.positions, prefix=prefix.bidirectional, cache=cache)[:, -1:]
        x, time_cache, token = x_t.flatten(1, -2).clone(), TimeCache(), None
        tokens, next_positions = x.shape[1], iter(positions.split(1))
        for begin, end in pairwise(grid):
            noise = self.distribution.base_noise(rng, tokens).split(1, dim=1)
            for i in range(tokens):
                now = begin + (end - begin) * (i / tokens)
                branches, at_token = params.guidance.at(now, condition, keep_all=True), params.at(i / tokens, now)
                with _unrecorded(x_t.device):
                    if token is not None:  # before the first token, the prefix has given h
                        read = branches.stack(self.distribution.embed(token))
                        h = backbone(read, positions=next(next_positions), prefix=0, cache=cache)
                    token = self.distribution(noise[i], h, times, at_token, branches, time_cache)
                x[:, i] = token[:, 0]
                if callback is not None and i + 1 in intermediates(tokens):
                    at = begin + (end - begin) * ((i + 1) / tokens)
                    callback(self._partial(x.view_as(x_t).clone(), i + 1, at))
            yield x.view_as(x_t).clone()

    def _partial(self, x: State, sampled: int, t: float) -> Snapshot:
        """A partial state; unsampled continuous tokens show the state before, unsampled codes are marked unknown."""
        tokens = prod(x.shape[1:-1])
        known = (torch.arange(tokens, device=x.device) < sampled).expand(len(x), -1).view(x.shape[:-1])
        return Snapshot("partial", t, x, known=None if self.distribution.continuous else known)


class FullHistory(Autoregressive):
    """X_{t+1}^i | (X_0, ..., X_t, X_{t+1}^{<i}): FHTM's kernel, causal over [begin, X_1, ..., X_T] (Eq. 18).

    X_0 is noise and carries no information: a learned token of `channels` numbers replaces it. The history determines
    the time, so neither backbone nor head reads one. Y is a whole path, (batch, T, *grid, channels).
    """

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, channels: int, dependent: bool = False
    ) -> None:
        super().__init__(backbone, distribution, dependent)
        self.begin = nn.Parameter(torch.zeros(channels))

    def prefix(self, x_t: State) -> Prefix:
        begin = self.begin.to(x_t.dtype).expand(len(x_t), 1, -1)
        return Prefix(begin, torch.zeros(1, 3, device=x_t.device), bidirectional=0)

    def losses(self, path: State, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """The loss of each state of the path (batch, T, *grid, channels), in one pass: (batch, T)."""
        self.distribution.require(path)
        contexts = self.contexts(path, path[:, 0], None, condition)
        losses = self.distribution.loss(path.flatten(1, -2), contexts, None, rng)
        return losses.unflatten(1, (path.shape[1], -1)).mean(2)


def _unrecorded(device: torch.device) -> AbstractContextManager[None]:
    """Inference mode, about 15% faster; no_grad under autocast, since inference mode would cast the weights again."""
    return torch.no_grad() if torch.is_autocast_enabled(autocast_kind(device)) else torch.inference_mode()


def _positions(x_t: State, states: int) -> Tensor:
    """(step, row, column) of the tokens of the states after X_t."""
    grid = x_t.shape[1:-1]
    return torch.cat([grid_positions(grid, step, x_t.device) for step in range(1, states + 1)])
