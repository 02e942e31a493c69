"""Sampling from a kernel that predicts a mean, in other ways than it was trained for; nothing is trained again.

Both kernels work on U, the state of the linear schedule with the same ratio of data to noise, at the time tau. There
E[X_T - Z | U] is the velocity of a flow from noise to data.
"""

from collections.abc import Callable

from torch import Tensor

from tmatch.condition import Condition
from tmatch.kernel.base import Kernel, MeanPredictor
from tmatch.kernel.exact import combined_reading
from tmatch.parametrization import Parametrization
from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.sampling import Callback, SamplingParams
from tmatch.solver import Step
from tmatch.tensors import State, Time


class FromMean(Kernel):
    """Y from the means of a trained kernel, at any state and time."""

    def __init__(self, own: MeanPredictor, process: Process, parametrization: Parametrization) -> None:
        super().__init__(own.backbone, own.distribution)
        self.own = own
        self.process = process
        self.parametrization = parametrization

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        return self.own.loss(y, x_t, t, condition, rng)

    def velocity(self, u: State, tau: Tensor, mean: Callable[[State, Time], State]) -> State:
        """E[X_T - Z | U], from E[Y | X_t] at the state and time that U and tau stand for.

        At tau = 1, where no model is trained, U is X_T and says nothing about Z, so the velocity is U.
        """
        if tau == 1:
            return u
        t = self.process.schedule.from_linear_time(tau)
        x_t = self.process.from_linear(u, t)
        ends = self.parametrization.endpoints(x_t, mean(x_t, t), *self.process.coefficients(t, x_t))
        assert ends is not None, "a sampler is rejected where Y does not determine X_T"
        return ends[1] - ends[0]

    def y(self, x_t: State, t: Time, z_t: State, x_T: State) -> State:
        """Y, from the endpoints."""
        return self.parametrization.target(Transition(z_t, x_t, x_t, x_T, *self.process.coefficients(t, x_t)))


class MeanODE(FromMean):
    """The Y that leads from X_t to where a solver takes dU/dtau = E[X_T - Z | U], plus the residual if there is one.

    `step` is one step of the solver, and may remember earlier ones. Euler's step is the mean kernel itself.
    """

    def __init__(self, own: MeanPredictor, process: Process, parametrization: Parametrization, step: Step) -> None:
        super().__init__(own, process, parametrization)
        self.step = step

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        residuals: list[State | float] = []

        def mean(x: State, at: Time) -> State:
            if residuals:
                return self.own.guided_mean(x, at, condition, params)
            mean, residual = self.own.mean_and_residual(x, at, condition, rng, params)
            residuals.append(residual)
            return mean

        schedule = self.process.schedule
        u, tau, tau_next = self.process.to_linear(x_t, t), schedule.linear_time(t), schedule.linear_time(t_next)
        u_next = self.step(lambda at, u: self.velocity(u, at, mean), u, tau, tau_next)
        average = (u_next - u) / (tau_next - tau).to(u)
        z_t = u - tau.to(u) * average
        return self.y(x_t, t, z_t, z_t + average) + residuals[0]


class JointKernel(FromMean):
    """Y ~ q(. | X_t) over all tokens jointly, exact if the mean is, as inner steps grow: GLASS (arXiv 2509.25170).

    X_T is sampled by an inner flow B_s = (1 - s) B_0 + s X_T given X_t. X_t and B_s are readings of X_T in Gaussian
    noise. Together they are one state with less noise, at a later time, where the mean kernel knows E[X_T | X_t, B_s],
    and the inner velocity is (E[X_T | X_t, B_s] - B_s) / (1 - s). Each inner step evaluates the backbone; a head is
    not needed.
    """

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        u, tau = self.process.to_linear(x_t, t), self.process.schedule.linear_time(t).double()

        def mean(x: State, at: Time) -> State:
            return self.own.guided_mean(x, at, condition, params)

        def inner(s: Tensor, b: State) -> State:
            if s == 1:  # B_s is X_T and says nothing about B_0
                return b
            scale = 1 - s + s * (1 - tau)  # (B_s - s U) / scale is the state of the flow to Y = X_T - Z at another time
            y = (b - s.to(b) * u) / scale.to(b)
            reading = combined_reading(u, y, 1 - tau, tau, s * (1 - tau) / scale)
            data = reading.x + (1 - reading.t).to(b) * self.velocity(reading.x, reading.t, mean)
            return (data - b) / (1 - s).to(b)

        x_T = params.at(0.0, float(t)).solver.solve(inner, rng.normal(*x_t.shape[1:]))
        sigma, alpha = self.process.coefficients(t, x_t)
        return self.y(x_t, t, (x_t - alpha * x_T) / sigma, x_T)
