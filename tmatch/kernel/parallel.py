"""All tokens in parallel, by a flow head given the backbone's output: DTM."""

import math

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution, require_contexts
from tmatch.guidance import Branches
from tmatch.kernel.base import Kernel
from tmatch.rng import RandomStreams
from tmatch.sampling import Callback, SamplingParams
from tmatch.tensors import State, Time, merge, split


class ParallelFlow(Kernel):
    """Y | (t, X_t), head tokens independent given h_t = f_t(X_t) (Eq. 13) unless the head is joint: DTM's kernel.

    A head token covers `head_patch` neighbouring backbone tokens, which are then sampled jointly: (1, 4) is the paper's
    2x8 patch on a grid of 2x2 ones. In training the head may use a random `token_fraction` of an image's head tokens:
    the same loss in expectation, at a fraction of the head's cost.
    """

    distribution: TokenDistribution

    def __init__(
        self, backbone: nn.Module, distribution: TokenDistribution, head_patch: tuple[int, ...] | None = None,
        token_fraction: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(backbone, distribution)
        if token_fraction < 1 and distribution.head is not None and distribution.head.joint:
            raise ValueError("A joint head needs all tokens of an image in training; set token_fraction to 1.")
        self.head_patch = head_patch
        self.token_fraction = token_fraction

    def merge(self, x: Tensor) -> Tensor:
        """Backbone tokens to head tokens."""
        return x if self.head_patch is None else merge(x, self.head_patch)

    def split(self, x: Tensor) -> Tensor:
        """Head tokens to backbone tokens."""
        return x if self.head_patch is None else split(x, self.head_patch)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        return self.head_loss(y, self.backbone(x_t, t, condition), t, rng)

    def head_loss(self, y: State, h_t: Tensor, t: Time, rng: RandomStreams) -> Tensor:
        """The head's loss of each image, the mean over the head tokens it is trained on."""
        require_contexts(h_t, y)
        b, h = (self.merge(x).flatten(1, -2) for x in (y, h_t))
        if self.token_fraction < 1:
            some = rng.uniform(b.shape[1]).argsort(1)[:, : math.ceil(self.token_fraction * b.shape[1]), None]
            b, h = b.take_along_dim(some, dim=1), h.take_along_dim(some, dim=1)
        return self.distribution.loss(b, h, t, rng).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        branches = params.guidance.at(float(t), condition)
        x, times, given = branches.inputs(x_t, t)
        return self.head_sample(self.backbone(x, times, given), times, rng, params.at(0.0, float(t)), branches)

    def head_sample(
        self, h_t: Tensor, t: Time | None, rng: RandomStreams, params: SamplingParams, branches: Branches
    ) -> State:
        """The head's sample of all tokens."""
        h = self.merge(h_t)
        b = self.distribution.sample(h.flatten(1, -2), t, rng, params, branches)
        return self.split(b.unflatten(1, h.shape[1:-1]))
