"""Y = X_{t+1}, the next state itself."""

import torch
from torch import Tensor

from tmatch.parametrization.base import Parametrization
from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time
from tmatch.times import Grid, Steps, Times, parse_steps


class NextState(Parametrization):
    """Y = X_{t+1}: the kernel is q_{t+1|t} itself, so the steps are part of what is learnt."""

    symbol = "X_{t+1}"

    def target(self, q: Transition) -> State:
        return q.x_next

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> None:
        """X_{t+1} does not tell which data it will become."""
        return None

    def advance(self, process: Process, x_t: State, y: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        """X_{t+1} = Y."""
        return y

    def check(self, process: Process, times: Times) -> None:
        if not isinstance(times, Grid):
            raise ValueError(
                "The next state needs to know when it is: train NextState on a Grid of times, "
                "or use Difference for continuous time."
            )

    def grid(self, times: Times, steps: Steps | None) -> Tensor:
        """The times of training, asked for as such, by their number or one by one."""
        trained = times.grid(None)
        if steps is None:
            return trained
        wanted = parse_steps(steps)
        if isinstance(wanted, int):
            same = wanted == len(trained) - 1
        else:
            same = len(wanted) == len(trained) and torch.allclose(wanted, trained)
        if not same:
            asked = wanted if isinstance(wanted, int) else wanted.tolist()
            raise ValueError(
                f"A model of the next state takes the {len(trained) - 1} steps it was trained with, "
                f"t = {trained.tolist()}, and no others (asked for {asked}); "
                "use Difference to choose the number of steps when sampling."
            )
        return trained
