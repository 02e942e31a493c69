"""Y = X_{t+1}, the next state itself."""

import torch
from torch import Tensor

from tmatch.parametrization.base import Parametrization
from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time
from tmatch.times import Grid, Steps, Times, parse_steps


class NextState(Parametrization):
    """Y = X_{t+1}: the kernel is q_{t+1|t} itself, so the model learns its steps too."""

    symbol = "X_{t+1}"

    def target(self, q: Transition) -> State:
        return q.x_next

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> None:
        return None  # X_{t+1} does not determine X_T

    def advance(self, process: Process, x_t: State, y: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        return y

    def check(self, process: Process, times: Times) -> None:
        if not isinstance(times, Grid):
            raise ValueError("NextState depends on the step size: train it on a Grid, or predict Difference.")

    def grid(self, times: Times, steps: Steps | None) -> Tensor:
        """The times of training, requested as None, by their number or one by one."""
        trained = times.grid(None)
        wanted = trained if steps is None else parse_steps(steps)
        same_number = len(trained) - 1 == (wanted if isinstance(wanted, int) else len(wanted) - 1)
        if not (same_number and (isinstance(wanted, int) or torch.allclose(wanted, trained))):
            raise ValueError(
                f"A model that predicts NextState takes the {len(trained) - 1} steps of its training, "
                f"t = {trained.tolist()}, not {steps}; use Difference to choose the number of steps when sampling."
            )
        return trained
