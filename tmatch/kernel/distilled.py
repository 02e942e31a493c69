"""The residual by distillation: the head learns the exact velocity that the mean implies, instead of samples."""

import torch
from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution import Flow, TokenDistribution
from tmatch.kernel.exact import exact_velocity
from tmatch.kernel.residual import ResidualFlow
from tmatch.parametrization import Difference, Parametrization
from tmatch.process import LinearProcess, Process
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time, expand_like


class DistilledResidual(ResidualFlow):
    """`ResidualFlow` whose head regresses u_s = E[R - B_0 | X_t, B_s], the mean of its usual target R - B_0.

    The minimum is the same, and the target has no noise. The teacher is the mean m, evaluated once per sample (s, B_0)
    at the state that X_t and B_s amount to. It shares the weights of the student's backbone and readout, frozen or not,
    and passes no gradient to them. All tokens of an image share its s, so the head is joint.
    """

    distribution: Flow

    def __init__(
        self, backbone: nn.Module, readout: nn.Module, distribution: TokenDistribution,
        head_patch: tuple[int, ...] | None = None, token_fraction: float = 1.0,
    ) -> None:  # fmt: skip
        if type(distribution) is not Flow:  # a subclass may learn something else than a velocity
            name = type(distribution).__name__
            raise ValueError(f"Distillation trains the velocity of Flow, not {name}: use the distribution flow.")
        if not distribution.head.joint:
            name = type(distribution.head).__name__
            raise ValueError(f"Distillation needs one s per image and so a joint head such as transformer; got {name}.")
        super().__init__(backbone, readout, distribution, head_patch, token_fraction)

    def check(self, process: Process, parametrization: Parametrization) -> None:
        super().check(process, parametrization)
        if not (isinstance(process, LinearProcess) and isinstance(parametrization, Difference)):
            raise ValueError(
                "Distillation needs the difference on the linear process; train the head on samples instead."
            )

    def residual_loss(
        self, r: State, m: State, h_t: Tensor, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams
    ) -> Tensor:
        """|g - u_s|^2 of each image."""
        b, h = self.merge(r), self.merge(h_t).flatten(1, -2)
        _, b_s, s = self.distribution.interpolate(b.flatten(1, -2), rng)
        states = self.split(b_s.flatten(0, 1).unflatten(1, b.shape[1:-1])).unflatten(0, s.shape)
        targets = [
            self.teacher(r_s, one, m, x_t, t, condition) for r_s, one in zip(states.unbind(1), s.unbind(1), strict=True)
        ]
        target = torch.stack([self.merge(u).flatten(1, -2) for u in targets], dim=1)
        return self.distribution.regression(b_s, s, h, t, target).mean(1)

    @torch.no_grad()
    def teacher(self, r_s: State, s: Time, m: State, x_t: State, t: Time, condition: Condition | None) -> State:
        """u_s = E[Y - B_0 | X_t, y_s] - m, where y_s = R_s + s m = (1 - s) B_0 + s Y."""
        mean, y_s = self.mean, r_s + expand_like(s, m).to(m.dtype) * m
        return exact_velocity(lambda x, time: mean.mean(x, time, condition), x_t, t, y_s, s) - m
