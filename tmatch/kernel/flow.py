"""Flow matching with a head, and the kernel that draws all tokens in parallel: DTM."""

import math

import torch
from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.guidance import Branches
from tmatch.head import Clock, Head
from tmatch.kernel.base import Decoding, Kernel
from tmatch.kernel.law import Law, require_contexts
from tmatch.noise import Noise
from tmatch.patch import merge, split
from tmatch.solver import FixedStep
from tmatch.tensors import State, Time, over, whole
from tmatch.times import Density, Uniform


class Flow(Law):
    """p(B | h) by flow matching: B_s = (1 - s) B_0 + s B, dB_s/ds = g_{s,t}(B_s, h) (Eqs. 8 and 9).

    Every kernel that draws continuous tokens rests on this pair of functions. A token is drawn by itself; in
    training each gets `draws` pairs of its own (s, B_0).
    """

    head: Head

    def __init__(self, head: Head, draws: int = 1, density: Density = Uniform()) -> None:
        super().__init__()
        self.head = head
        self.channels = head.channels
        self.draws = whole("The number of draws a token", draws)
        self.density = density

    def loss(self, b: Tensor, h: Tensor, t: Time | None, noise: Noise) -> Tensor:
        """|g_{s,t}(B_s, h) - (B - B_0)|^2 for each token, (batch, *tokens)."""
        self.require_width(b)
        require_contexts(h, b)
        b, h = b.unsqueeze(1), h.unsqueeze(1)  # (batch, draws, *tokens, channels)
        b_0 = noise.normal(self.draws, *b.shape[2:])
        s = self.density.sample(noise, self.draws, *b.shape[2:-1])
        share = over(s, b).to(b.dtype)
        b_s = (1 - share) * b_0 + share * b
        u = self.head(b_s, s, self.head.prepare(h, t))
        return (u - (b - b_0)).square().mean(-1).mean(1)

    def start(self, noise: Noise, *tokens: int) -> Tensor:
        """B_0 ~ N(0, I)."""
        return noise.normal(*tokens, self.head.channels)

    def forward(
        self,
        b_0: Tensor,
        h: Tensor,
        t: Time | None,
        decoding: Decoding,
        branches: Branches,
        clock: Clock | None = None,
    ) -> Tensor:
        """B from B_0, along the guided velocity."""
        solver = decoding.solver
        fixed = isinstance(solver, FixedStep)  # an adaptive one comes to other times at every token
        keeps = fixed and not torch.compiler.is_compiling()  # compiled, what the times say is constant anyway
        context = self.head.prepare(h, t, clock if keeps else None)
        return solver.solve(branches.guide(lambda s, b_s: self.head(b_s, s, context)), b_0)


class ParallelFlow(Kernel):
    """Y | (t, X_t) with every head token drawn on its own given h_t = f_t(X_t) (Eq. 13): DTM's kernel.

    A head token covers `head_patch` neighbouring backbone tokens, which are then drawn jointly: (1, 4) is the paper's
    2x8 patch on a grid of 2x2 ones. In training the head may learn from a `share` of an image's head tokens, chosen at
    random: the same loss on average, for a share of the head's cost.
    """

    def __init__(
        self, backbone: nn.Module, flow: Flow, head_patch: tuple[int, ...] | None = None, share: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise ValueError(f"The head learns from a share of the tokens in (0, 1]; got {share}.")
        self.backbone = backbone
        self.flow = flow
        self.head_patch = head_patch
        self.share = share

    @property
    def head(self) -> nn.Module:
        return self.flow.head

    def merge(self, x: Tensor) -> Tensor:
        """Backbone tokens to head tokens."""
        return x if self.head_patch is None else merge(x, self.head_patch)

    def split(self, x: Tensor) -> Tensor:
        """Head tokens to backbone tokens."""
        return x if self.head_patch is None else split(x, self.head_patch)

    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, noise: Noise) -> Tensor:
        return self.head_loss(y, self.backbone(x_t, t, condition), t, noise)

    def head_loss(self, y: State, h_t: Tensor, t: Time, noise: Noise) -> Tensor:
        """The head's loss of each image, the mean over the head tokens it learns from."""
        require_contexts(h_t, y)
        b, h = (self.merge(x).flatten(1, -2) for x in (y, h_t))
        if self.share < 1:
            some = noise.uniform(b.shape[1]).argsort(1)[:, : math.ceil(self.share * b.shape[1]), None]
            b, h = b.take_along_dim(some, dim=1), h.take_along_dim(some, dim=1)
        return self.flow.loss(b, h, t, noise).mean(1)

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, noise: Noise, decoding: Decoding
    ) -> State:
        branches = decoding.guidance.at(float(t), condition)
        x, times, given = branches.inputs(x_t, t)
        h_t = self.merge(self.backbone(x, times, given))
        return self.split(self.flow.sample(h_t, times, noise, decoding, branches))
