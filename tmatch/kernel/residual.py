"""The mean by regression, and the residual of Y by a flow head: DTM with flow matching's training signal."""

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution
from tmatch.kernel.base import MeanPredictor
from tmatch.kernel.mean import MeanKernel
from tmatch.kernel.parallel import ParallelFlow
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time


class ResidualFlow(MeanPredictor, ParallelFlow):
    """Y = m + R, with m = E[Y | X_t] a readout of h_t learned by |m - Y|^2, and R ~ p(. | h_t) by flow matching.

    It models the same distributions as `ParallelFlow`; the regression also trains the backbone, which helps early in
    training. Not in the paper. R does not influence the regression.
    """

    def __init__(
        self, backbone: nn.Module, readout: nn.Module, distribution: TokenDistribution,
        head_patch: tuple[int, ...] | None = None, token_fraction: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(backbone, distribution, head_patch, token_fraction)
        self.readout = readout

    @property
    def mean(self) -> MeanKernel:
        """Flow matching with the same weights."""
        return MeanKernel(self.backbone, self.readout)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        h_t = self.backbone(x_t, t, condition)
        m = self.readout(h_t).to(y.dtype)
        regression, m = (m - y).square().flatten(1).mean(1), m.detach()
        return regression + self.residual_loss(y - m, m, h_t, x_t, t, condition, rng)

    def residual_loss(
        self, r: State, m: State, h_t: Tensor, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams
    ) -> Tensor:
        """The head's loss of each image, for a sample of R."""
        return self.head_loss(r, h_t, t, rng)

    def guided_mean(self, x_t: State, t: Time, condition: Condition | None, params: SamplingParams) -> State:
        return self.mean.guided_mean(x_t, t, condition, params)

    def mean_and_residual(
        self, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> tuple[State, State | float]:
        branches = params.guidance.at(float(t), condition)
        x, times, given = branches.inputs(x_t, t)
        h_t = self.backbone(x, times, given)
        m = branches.mix(self.readout(h_t).to(x_t.dtype))
        return m, self.head_sample(h_t, times, rng, params.at(0.0, float(t)), branches)
