"""All tokens in parallel, each by flow matching given the backbone's output: DTM."""

import math

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution import Flow
from tmatch.distribution.base import require_contexts
from tmatch.kernel.base import Kernel
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time, merge, split


class ParallelFlow(Kernel):
    """Y | (t, X_t) with every head token drawn on its own given h_t = f_t(X_t) (Eq. 13): DTM's kernel.

    A head token covers `head_patch` neighbouring backbone tokens, which are then drawn jointly: (1, 4) is the paper's
    2x8 patch on a grid of 2x2 ones. In training the head may learn from a `token_fraction` of an image's
    head tokens, chosen at random: the same loss in expectation, for a fraction of the head's cost.
    """

    def __init__(
        self,
        backbone: nn.Module,
        distribution: Flow,
        head_patch: tuple[int, ...] | None = None,
        token_fraction: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 < token_fraction <= 1:
            raise ValueError(f"The head learns from a share of the tokens in (0, 1]; got {token_fraction}.")
        self.backbone = backbone
        self.distribution = distribution
        self.head_patch = head_patch
        self.token_fraction = token_fraction

    @property
    def head(self) -> nn.Module:
        return self.distribution.head

    def merge(self, x: Tensor) -> Tensor:
        """Backbone tokens to head tokens."""
        return x if self.head_patch is None else merge(x, self.head_patch)

    def split(self, x: Tensor) -> Tensor:
        """Head tokens to backbone tokens."""
        return x if self.head_patch is None else split(x, self.head_patch)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        return self.head_loss(y, self.backbone(x_t, t, condition), t, rng)

    def head_loss(self, y: State, h_t: Tensor, t: Time, rng: RandomStreams) -> Tensor:
        """The head's loss of each image, the mean over the head tokens it learns from."""
        require_contexts(h_t, y)
        b, h = (self.merge(x).flatten(1, -2) for x in (y, h_t))
        if self.token_fraction < 1:
            some = rng.uniform(b.shape[1]).argsort(1)[:, : math.ceil(self.token_fraction * b.shape[1]), None]
            b, h = b.take_along_dim(some, dim=1), h.take_along_dim(some, dim=1)
        return self.distribution.loss(b, h, t, rng).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> State:
        branches = params.guidance.at(float(t), condition)
        x, times, given = branches.inputs(x_t, t)
        h_t = self.merge(self.backbone(x, times, given))
        return self.split(self.distribution.sample(h_t, times, rng, params, branches))
