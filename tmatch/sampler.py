"""Samplers: how Algorithm 2 is run. A sampler is chosen when sampling; the weights are the same.

A sampler answers three questions, and Algorithm 2 does the rest:

    steps      which times to visit; where time decreases, the process adds noise
    process    how X_{t+1} follows from Y: with which noise
    kernel     where Y comes from: the trained kernel, or one that is made from it

    default      Algorithm 2 as written; for flow matching, Euler's method
    restart      goes back and forth on some intervals
    overshoot    steps too far and adds noise to return: a stochastic sampler at no cost
    ddim, sde    noise in each transition, by its share of DDPM's or by a diffusion coefficient
    heun, ab2, ... the ODE of a mean, by the solver of that name
    glass        transitions sampled jointly over all tokens, from a mean alone

To add one, write a class here and a row of `SAMPLERS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import Tensor

from tmatch.config import call_by_name
from tmatch.kernel import JointKernel, Kernel, MeanODE, MeanPredictor
from tmatch.parametrization import Parametrization
from tmatch.process import GaussianProcess, Process
from tmatch.rng import RandomStreams
from tmatch.solver import SOLVERS, Adaptive, Euler, FixedStep, Solver
from tmatch.tensors import State, Time, expand_like


@dataclass(frozen=True)
class Sampler:
    """Algorithm 2 as written: every time of the grid once, in order."""

    def steps(self, grid: Tensor) -> Iterator[tuple[Time, Time]]:
        """Pairs (t, t'): a transition if t' > t, noise added if t' < t."""
        return pairwise(grid)

    def process(self, own: Process) -> Process:
        """The process to sample with, given the one of training: the same schedule, possibly other noise."""
        return own

    def kernel(self, own: Kernel, process: Process, parametrization: Parametrization) -> Kernel:
        """The kernel to sample with, given the trained one; it may remember the transitions of one call of `sample`."""
        return own

    has_inner_solver: ClassVar[bool] = False
    """Whether transitions use `SamplingParams.solver` even without a head."""


def require_mean(kernel: Kernel) -> MeanPredictor:
    """The kernel, which must predict the mean of Y."""
    if not isinstance(kernel, MeanPredictor):
        raise ValueError(
            "This sampler needs a kernel that predicts a mean, as those of fm, ddpm and dtm-mean do, and a "
            f"{type(kernel).__name__} does not; choose overshoot, restart, ddim or sde."
        )
    return kernel


PAPER_RESTARTS = ((0.6, 0.4, 1), (0.8, 0.6, 3), (1.0, 0.8, 3))
"""(late, early, times) of the paper."""
MAX_RESTARTS = 100
"""On one interval; more is a mistake."""


@dataclass(frozen=True)
class RestartSampler(Sampler):
    """At time `late`, add noise to return to `early`, `times` times, for each interval (Xu et al., 2023).

    The defaults are the paper's: 1000 steps become 2400 transitions.
    """

    intervals: tuple[tuple[float, float, int], ...] = PAPER_RESTARTS

    def __post_init__(self) -> None:
        for late, early, times in self.intervals:
            if not (0 <= early < late <= 1 and 1 <= times <= MAX_RESTARTS):
                raise ValueError(f"Pass (late, early, times <= {MAX_RESTARTS}), 0 <= early < late <= 1; got {self}.")

    def steps(self, grid: Tensor) -> Iterator[tuple[Time, Time]]:
        back: dict[int, list[int]] = {}
        for late, early, times in self.intervals:
            high, low = (int((grid - t).abs().argmin()) for t in (late, early))
            if high == low:
                raise ValueError(f"{len(grid) - 1} steps are too few to restart from t = {late} at {early}.")
            back.setdefault(high, []).extend([low] * times)
        for index, step in enumerate(pairwise(grid), start=1):
            yield step
            for low in back.get(index, []):
                yield grid[index], grid[low]
                yield from pairwise(grid[low : index + 1])


@dataclass(frozen=True)
class DDIMProcess(Process):
    """Z_{t+1} = sqrt(1 - w^2) Z_t + w Z with w = eta sqrt(1 - rho^2), rho the correlation of the diffusion process."""

    eta: float = 1.0
    noise_kept: ClassVar[Literal["some"]] = "some"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        kept = self.schedule.alpha(t) * self.schedule.sigma(t_next)
        rho = kept / (self.schedule.sigma(t) * self.schedule.alpha(t_next))
        w = expand_like(self.eta * (1 - rho**2).clamp(min=0).sqrt(), z_t)
        return (1 - w**2).sqrt().to(z_t.dtype) * z_t + w.to(z_t.dtype) * rng.normal(*z_t.shape[1:])


@dataclass(frozen=True)
class DDIMSampler(Sampler):
    """A fraction `eta` of DDPM's noise: 0 is deterministic, 1 is DDPM (Song et al., 2021)."""

    eta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1]: 0 is deterministic, 1 is DDPM; got {self.eta}.")

    def process(self, own: Process) -> Process:
        return DDIMProcess(own.schedule, self.eta) if self.eta else GaussianProcess(own.schedule)


@dataclass(frozen=True)
class OvershootSampler(Sampler):
    """Instead of to t', step to t'' = t' + c (1 - t'), and add noise to return to t'.

    This is the sampler of Singer and Lipman (2025), Design space of transition matching, where c is a fraction of the
    time left after t'. In rectified flow's stochastic samplers it is c (t' - t) (1 - t') instead, with another c. With
    c = 0 it is Algorithm 2, and with c = 1 each step samples X_T. `c` is the value at t' = 0 and `c_end` at t' = 1,
    with a line between them.
    """

    c: float = 0.5
    c_end: float | None = None

    def __post_init__(self) -> None:
        if not all(0 <= c <= 1 for c in (self.c, self.c if self.c_end is None else self.c_end)):
            raise ValueError(f"c of overshoot must be in [0, 1]: 0 is Algorithm 2, 1 steps to t = 1; got {self}.")

    def steps(self, grid: Tensor) -> Iterator[tuple[Time, Time]]:
        for t, t_next in pairwise(grid):
            c = self.c if self.c_end is None else self.c + (self.c_end - self.c) * t_next
            beyond = t_next + c * (1 - t_next)
            yield t, beyond
            if beyond > t_next:
                yield beyond, t_next


@dataclass(frozen=True)
class DiffusionSDE(Process):
    """One step of Euler and Maruyama of dX = v dt - w/2 E[Z | X] / sigma dt + sqrt(w) dW, w_t = scale sigma_t^power.

    v is the velocity of the ODE, whose step is exact given Z and X_T. The noise of X at t' is
    sigma' Z - w/2 dt Z / sigma + sqrt(w dt) Z_new; the marginals are kept as the steps become small.
    """

    scale: float = 1.0
    power: float = 1.0
    noise_kept: ClassVar[Literal["some"]] = "some"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        sigma, sigma_next, dt = self.schedule.sigma(t), self.schedule.sigma(t_next), t_next - t
        w = self.scale * sigma**self.power
        kept, fresh = (expand_like(x, z_t).to(z_t) for x in (sigma_next - w / 2 * dt / sigma, (w * dt).sqrt()))
        noise = kept * z_t + fresh * rng.normal(*z_t.shape[1:])
        return noise / expand_like(sigma_next, z_t).to(z_t).clamp(min=1e-9)  # where X has no noise, a finite number


@dataclass(frozen=True)
class SDESampler(Sampler):
    """The stochastic differential equation with the diffusion coefficient w_t = scale sigma_t^power (SiT).

    By Euler and Maruyama; the last step is a mean, without noise. It needs many steps; SiT uses 250.
    """

    scale: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.scale <= 100 and 0 <= self.power <= 10):
            raise ValueError(f"The scale of sde must be in [0, 100] and its power in [0, 10]; got {self}.")

    def process(self, own: Process) -> Process:
        return DiffusionSDE(own.schedule, self.scale, self.power)


@dataclass(frozen=True)
class ODESampler(Sampler):
    """The ODE of a mean kernel, by a solver; a residual, as of dtm-mean, is added to the mean.

    The mean and the residual are exact together by Euler steps. A solver of higher order already has the covariance
    that Euler's steps lack, so that a residual on top adds too much: by an amount that decreases with the step.
    """

    solver: Solver = Euler(1)

    def process(self, own: Process) -> Process:
        return GaussianProcess(own.schedule)

    def kernel(self, own: Kernel, process: Process, parametrization: Parametrization) -> Kernel:
        return MeanODE(require_mean(own), process, parametrization, self.solver.stepper())


@dataclass(frozen=True)
class GlassSampler(Sampler):
    """Transitions that are sampled jointly over all tokens, by an inner ODE of the mean (GLASS).

    The solver and its steps are those of a head: `params.solver`, and from the command line --solver and --head-steps.
    """

    has_inner_solver: ClassVar[bool] = True

    def process(self, own: Process) -> Process:
        return GaussianProcess(own.schedule)

    def kernel(self, own: Kernel, process: Process, parametrization: Parametrization) -> Kernel:
        return JointKernel(require_mean(own), process, parametrization)


def restart_sampler(*numbers: float) -> Sampler:
    """At time `late`, add noise to return to `early`, `times` times; late,early,times for each interval.

    Without numbers, the paper's three intervals: 1000 steps become 2400 transitions (Xu et al., 2023).
    """
    if len(numbers) % 3 or any(not times.is_integer() for times in numbers[2::3]):
        raise ValueError(f"restart takes late,early,times for each interval, as in restart:0.6,0.4,1; got {numbers}.")
    intervals = zip(numbers[::3], numbers[1::3], map(int, numbers[2::3]), strict=True)
    return RestartSampler(tuple(intervals) or PAPER_RESTARTS)


def adaptive_sampler(tolerance: float = 1e-3) -> Sampler:
    """ODE of the mean: torchdiffeq's dopri5 within each step, to a relative and absolute tolerance."""
    if not 1e-6 <= tolerance <= 1:
        raise ValueError(f"The tolerance of adaptive must be in [1e-6, 1]; got {tolerance}.")
    return ODESampler(Adaptive(rtol=tolerance, atol=tolerance))


def ode_sampler(solver: type[FixedStep]) -> Callable[[], Sampler]:
    """A function that builds the sampler of a solver."""

    def build() -> Sampler:
        return ODESampler(solver(1))

    build.__doc__ = f"ODE of the mean: {(solver.__doc__ or '').strip()}"
    return build


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "default": Sampler,
    "restart": restart_sampler,
    "overshoot": OvershootSampler,
    "ddim": DDIMSampler,
    "sde": SDESampler,
    "glass": GlassSampler,
    "adaptive": adaptive_sampler,
    **{name: ode_sampler(solver) for name, solver in SOLVERS.items()},
}


def build_sampler(spec: str) -> Sampler:
    """A sampler from its name and the numbers it takes: 'default', 'restart', 'overshoot:0.5'."""
    return call_by_name("sampler", SAMPLERS, spec)
