"""The mean of Y alone: flow matching."""

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.kernel.base import MeanPredictor
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time, require_shape


class MeanKernel(MeanPredictor):
    """Y = E[Y | X_t], learned by regression; with the difference on the linear process, sampling is Euler's method.

    `readout` maps the backbone's output to tokens.
    """

    def __init__(self, backbone: nn.Module, readout: nn.Module) -> None:
        super().__init__(backbone)
        self.readout = readout

    def mean(self, x_t: State, t: Time | None, condition: Condition | None) -> State:
        """E[Y | X_t]."""
        return self.readout(self.backbone(x_t, t, condition)).to(x_t.dtype)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """|E[Y | X_t] - Y|^2."""
        mean = self.mean(x_t, t, condition)
        require_shape("The predicted mean", mean, y.shape[1:])
        return (mean - y).square().flatten(1).mean(1)

    def guided_mean(self, x_t: State, t: Time, condition: Condition | None, params: SamplingParams) -> State:
        branches = params.guidance.at(float(t), condition)
        return branches.mix(self.mean(*branches.inputs(x_t, t)))

    def mean_and_residual(
        self, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> tuple[State, State | float]:
        return self.guided_mean(x_t, t, condition, params), 0.0

    def check(self, process: Process, parametrization: Parametrization) -> None:
        name = type(process).__name__
        if process.noise_kept == "none":
            raise ValueError(
                f"A mean kernel cannot follow {name}: fresh noise at every step leaves an error that more steps do not "
                "remove; use LinearProcess, or a flow kernel."
            )
        if isinstance(parametrization, NextState) and process.noise_kept != "all":
            raise ValueError(
                f"The mean of X_{{t+1}} lacks the noise that {name} adds at each step; predict Difference, CleanState "
                "or NoiseState, and the process adds the noise itself."
            )
