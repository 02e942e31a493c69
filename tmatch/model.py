"""Algorithm 1 and Algorithm 2, side by side, for every choice of process, Y and kernel."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.kernel import FullHistory, Kernel
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampler import Sampler
from tmatch.sampling import SamplingParams, Snapshot
from tmatch.tensors import State, Time, positive_int, require_finite, require_shape
from tmatch.times import FixedTime, Grid, Steps, Times


class Model(nn.Module, ABC):
    """What is trained with `loss` and generates with `sample`, whatever is inside."""

    def __init__(
        self,
        process: Process,
        parametrization: Parametrization,
        kernel: Kernel,
        times: Times,
        sampler: Sampler = Sampler(),
    ) -> None:
        super().__init__()
        self.process = process
        self.parametrization = parametrization
        self.kernel = kernel
        self.times = times
        self.sampler = sampler
        self.check()
        parametrization.check(process, times)
        kernel.check(process, parametrization)

    @abstractmethod
    def check(self) -> None:
        """Refuse choices that another model is for, in a sentence that says which."""

    @abstractmethod
    def loss(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """The training loss of each image; `fixed_time` fixes the time, for validation."""

    @abstractmethod
    def sample(
        self,
        shape: Sequence[int],
        rng: RandomStreams,
        condition: Condition | None = None,
        steps: Steps | None = None,
        params: SamplingParams = SamplingParams(),
        start: State | None = None,
    ) -> State:
        """X_T of `shape` (*grid, channels), one for each stream of the noise."""

    def grid(self, steps: Steps | None = None) -> Tensor:
        """The times Algorithm 2 visits, refused where this model cannot take those steps."""
        return self.parametrization.grid(self.times, steps)

    def source(self, shape: Sequence[int], rng: RandomStreams) -> State:
        """X_0 ~ p_0."""
        for side in shape:
            positive_int("Each side of the shape", side)
        return self.process.source(shape, rng)

    def transitions(self, steps: Steps | None = None) -> int:
        """How many transitions `sample` makes."""
        return sum(bool(t_next > t) for t, t_next in self.sampler.steps(self.grid(steps)))


class TransitionMatching(Model):
    """A Markov chain X_0 -> X_1 -> ... -> X_T learnt from a supervising process."""

    def check(self) -> None:
        if isinstance(self.kernel, FullHistory):
            raise ValueError("A FullHistory kernel needs whole paths, not pairs of states: use FullHistoryMatching.")

    def loss(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """Algorithm 1, line by line; one value per image."""
        x_T = checked("x_T", x_T, rng, condition)
        t, t_next = (fixed_time or self.times).sample(rng)  # t ~ U([T - 1])
        q = self.process.sample(x_T, t, t_next, rng)  # (X_t, X_{t+1}) ~ q(. | X_T)
        y = self.parametrization.target(q)  # Y
        return self.kernel.loss(y, q.x_t, t, condition, rng)  # D(Y, p(. | X_t))

    @torch.no_grad()
    def sample(
        self,
        shape: Sequence[int],
        rng: RandomStreams,
        condition: Condition | None = None,
        steps: Steps | None = None,
        params: SamplingParams = SamplingParams(),
        start: State | None = None,
    ) -> State:
        """Algorithm 2: X_T of `shape` (*grid, channels), one for each stream of the noise.

        `steps` is a number, a list of times, or None for the model's own; `start` is the state at the first of them,
        where that is not 0.
        """
        grid = self.grid(steps)
        if start is None and grid[0] != 0:
            raise ValueError(f"Sampling from t = {float(grid[0])} needs the state at that time: pass it as `start`.")
        x_t = self.source(shape, rng) if start is None else start  # X_0 ~ p_0
        require_shape("The starting state", x_t, shape)
        x_t = checked("the starting state", x_t, rng, condition)
        params.report(Snapshot("start", float(grid[0]), x_t))
        for t, t_next in self.sampler.steps(grid):
            if t_next > t:
                x_t = self.step(x_t, t, t_next, rng, condition, params)
            else:
                x_t = self.process.renoise(x_t, t, t_next, rng)
        return x_t

    def step(
        self, x_t: State, t: Time, t_next: Time, rng: RandomStreams, condition: Condition | None, params: SamplingParams
    ) -> State:
        """One transition of Algorithm 2."""
        y = self.kernel.sample(x_t, t, t_next, condition, rng, params)  # Y ~ p(. | X_t)
        require_shape("What the kernel draws", y, x_t.shape[1:])
        x_next = self.parametrization.advance(self.process, x_t, y, t, t_next, rng)  # X_{t+1} ~ q(. | X_t, Y)
        if params.observe is not None:
            estimate = self.parametrization.estimate(self.process, x_t, y, t)
            params.report(Snapshot("transition", float(t_next), x_next, estimate))
        return x_next


class FullHistoryMatching(Model):
    """A path X_1, ..., X_T drawn given all that is before, and learnt whole: FHTM.

    There is no Markov chain, so Algorithm 1 has no t to draw: teacher forcing takes every transition of a path at once.
    """

    kernel: FullHistory
    times: Grid

    def check(self) -> None:
        next_state, straight = isinstance(self.parametrization, NextState), self.sampler == Sampler()
        if not (next_state and isinstance(self.kernel, FullHistory) and straight):
            raise ValueError(
                "A model of the full history predicts NextState by a FullHistory kernel, going straight on."
            )

    def loss(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """The mean over all transitions; over the one at `fixed_time`, if given."""
        x_T = checked("x_T", x_T, rng, condition)
        path = self.process.path(x_T, self.grid(), rng)  # (X_0, ..., X_T) ~ q(. | X_T)
        losses = self.kernel.losses(torch.stack(path[1:], dim=1), condition, rng)
        return losses.mean(1) if fixed_time is None else losses[:, self.times.points.index(fixed_time.t)]

    @torch.no_grad()
    def sample(
        self,
        shape: Sequence[int],
        rng: RandomStreams,
        condition: Condition | None = None,
        steps: Steps | None = None,
        params: SamplingParams = SamplingParams(),
        start: State | None = None,
    ) -> State:
        """X_1, ..., X_T token by token. There is no state to start from but the first: the rest needs its history."""
        grid = self.grid(steps)
        if start is not None:
            raise ValueError("A model of the full history cannot start from a state: it needs all that came before it.")
        x_t = checked("the starting state", self.source(shape, rng), rng, condition)  # X_0 ~ p_0
        params.report(Snapshot("start", float(grid[0]), x_t))
        states = self.kernel.states(x_t, grid.tolist(), None, condition, rng, params)
        for t, x_t in zip(grid[1:], states, strict=True):  # X_{t+1} ~ p(. | X_0, ..., X_t)
            params.report(Snapshot("transition", float(t), x_t))
        return x_t


def checked(name: str, x: State, rng: RandomStreams, condition: Condition | None) -> State:
    """A state of float32 at least; what would only come out as NaN, or as an error deep inside, is refused."""
    require_finite(name, x)
    if condition is not None:
        require_finite("the condition", condition.tokens)
    rng.require_streams(len(x))
    return x.to(torch.promote_types(x.dtype, torch.float32))
