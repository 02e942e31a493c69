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
from tmatch.sampling import Callback, SamplingParams, Snapshot
from tmatch.tensors import State, require_finite, require_shape
from tmatch.times import FixedTime, Grid, Steps, Times


class Model(nn.Module, ABC):
    """A model that trains with `loss` and generates with `sample`."""

    def __init__(self, process: Process, parametrization: Parametrization, kernel: Kernel, times: Times) -> None:
        super().__init__()
        self.process = process
        self.parametrization = parametrization
        self.kernel = kernel
        self.times = times
        self.check()
        parametrization.check(process, times)
        kernel.check(process, parametrization)

    @abstractmethod
    def check(self) -> None:
        """Raise if another model class is needed, with a message that says which."""

    @abstractmethod
    def loss(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """The training loss of each image; `fixed_time` fixes the time, for validation."""

    def forward(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """`loss`, so that DDP and other wrappers can call the module."""
        return self.loss(x_T, rng, condition, fixed_time)

    @abstractmethod
    def sample(
        self, shape: Sequence[int], rng: RandomStreams, condition: Condition | None = None, steps: Steps | None = None,
        params: SamplingParams = SamplingParams(), *, sampler: Sampler = Sampler(), start: State | None = None,
        callback: Callback | None = None,
    ) -> State:  # fmt: skip
        """X_T of `shape` (*grid, channels), one for each random stream."""

    def grid(self, steps: Steps | None = None) -> Tensor:
        """The times that Algorithm 2 visits; raises if this model cannot take those steps."""
        return self.parametrization.grid(self.times, steps)

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise if a sampler other than the default does not apply: NextState has learned the path and its noise."""
        if not isinstance(sampler, Sampler):
            raise ValueError(f"sampler must be a Sampler, such as tmatch.build_sampler('ddim'); got {sampler!r}.")
        if isinstance(self.parametrization, NextState) and sampler != Sampler():
            raise ValueError("A model that predicts NextState needs the default sampler.")

    def transitions(self, steps: Steps | None = None, sampler: Sampler = Sampler()) -> int:
        """The number of transitions that `sample` makes."""
        self.check_sampler(sampler)
        return sum(bool(t_next > t) for t, t_next in sampler.steps(self.grid(steps)))


class TransitionMatching(Model):
    """A Markov chain X_0 -> X_1 -> ... -> X_T learned from a supervising process."""

    def check(self) -> None:
        if isinstance(self.kernel, FullHistory):
            raise ValueError("A FullHistory kernel needs whole paths, not pairs of states; use FullHistoryMatching.")

    def loss(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """Algorithm 1, line by line; one value per image."""
        x_T = checked("x_T", x_T, rng, condition)
        t, t_next = (fixed_time or self.times).sample(rng)  # t ~ U([T - 1])
        q = self.process.sample(x_T, t, t_next, rng)  # (X_t, X_{t+1}) ~ q(. | X_T)
        y = self.parametrization.target(q)  # Y
        return self.kernel.loss(y, q.x_t, t, condition, rng)  # D(Y, p(. | X_t))

    def check_sampler(self, sampler: Sampler) -> None:
        super().check_sampler(sampler)
        sampler.kernel(self.kernel, sampler.process(self.process), self.parametrization)

    @torch.no_grad()
    def sample(
        self, shape: Sequence[int], rng: RandomStreams, condition: Condition | None = None, steps: Steps | None = None,
        params: SamplingParams = SamplingParams(), *, sampler: Sampler = Sampler(), start: State | None = None,
        callback: Callback | None = None,
    ) -> State:  # fmt: skip
        """Algorithm 2: X_T of `shape` (*grid, channels), one for each random stream.

        `steps` is a number, a list of times, or None for the model's default; `start` is the state at the first time,
        if that is not 0. The `callback` receives a `Snapshot` of each state.
        """
        self.check_sampler(sampler)
        grid, process = self.grid(steps), sampler.process(self.process)
        kernel = sampler.kernel(self.kernel, process, self.parametrization)
        self.kernel.check(process, self.parametrization)
        if start is None and grid[0] != 0:
            raise ValueError(f"Sampling from t = {float(grid[0])} needs the state at that time; pass it as `start`.")
        x_t = self.process.source(shape, rng) if start is None else start  # X_0 ~ p_0
        x_t = checked("The starting state", x_t, rng, condition)
        require_shape("The starting state", x_t, shape)
        if callback is not None:
            callback(Snapshot("start", float(grid[0]), x_t))
        for t, t_next in sampler.steps(grid):
            if t_next < t:
                x_t = process.renoise(x_t, t, t_next, rng)
                continue
            y = kernel.sample(x_t, t, t_next, condition, rng, params, callback)  # Y ~ p(. | X_t)
            require_shape("The kernel's sample", y, x_t.shape[1:])
            x_next = self.parametrization.advance(process, x_t, y, t, t_next, rng)  # X_{t+1} ~ q(. | X_t, Y)
            if callback is not None:
                estimate = self.parametrization.estimate(process, x_t, y, t)
                callback(Snapshot("transition", float(t_next), x_next, estimate))
            x_t = x_next
        return x_t


class FullHistoryMatching(Model):
    """A path in which each state depends on all earlier ones: FHTM. Teacher forcing learns every transition at once."""

    kernel: FullHistory
    times: Grid

    def check(self) -> None:
        if not (isinstance(self.parametrization, NextState) and isinstance(self.kernel, FullHistory)):
            raise ValueError("FullHistoryMatching needs the NextState parametrization and a FullHistory kernel.")

    def loss(
        self, x_T: State, rng: RandomStreams, condition: Condition | None = None, fixed_time: FixedTime | None = None
    ) -> Tensor:
        """The mean over all transitions, or the transition at `fixed_time`."""
        x_T = checked("x_T", x_T, rng, condition)
        path = self.process.path(x_T, self.grid(), rng)  # (X_0, ..., X_T) ~ q(. | X_T)
        losses = self.kernel.losses(torch.stack(path[1:], dim=1), condition, rng)
        return losses.mean(1) if fixed_time is None else losses[:, self.times.points.index(fixed_time.t)]

    @torch.no_grad()
    def sample(
        self, shape: Sequence[int], rng: RandomStreams, condition: Condition | None = None, steps: Steps | None = None,
        params: SamplingParams = SamplingParams(), *, sampler: Sampler = Sampler(), start: State | None = None,
        callback: Callback | None = None,
    ) -> State:  # fmt: skip
        grid = self.grid(steps)
        self.check_sampler(sampler)
        if start is not None:
            raise ValueError("Full-history models cannot start from a given state.")
        x_t = checked("The starting state", self.process.source(shape, rng), rng, condition)  # X_0 ~ p_0
        if callback is not None:
            callback(Snapshot("start", float(grid[0]), x_t))
        states = self.kernel.states(x_t, grid.tolist(), None, condition, rng, params, callback)
        for t, x_t in zip(grid[1:], states, strict=True):  # X_{t+1} ~ p(. | X_0, ..., X_t)
            if callback is not None:
                callback(Snapshot("transition", float(t), x_t))
        return x_t


def checked(name: str, x: State, rng: RandomStreams, condition: Condition | None) -> State:
    """The state in float32 or wider; raises on input that would only fail, or become NaN, deep inside."""
    require_finite(name, x)
    if condition is not None:
        if not isinstance(condition, Condition):
            raise ValueError("Embed class labels or text first: Condition.dense(embedding(labels)[:, None]).")
        if not condition.tokens.requires_grad:  # a learned one overflows if training diverges, and so does the loss
            require_finite("The condition", condition.tokens)
    if not isinstance(rng, RandomStreams):
        raise ValueError("rng must be RandomStreams, with one seed per image; see also RandomStreams.derive.")
    if len(rng) != len(x):
        raise ValueError(f"Got {len(rng)} random streams for {len(x)} images; pass one seed per image.")
    return x.to(torch.promote_types(x.dtype, torch.float32))
