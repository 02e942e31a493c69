"""Tokens that are codes of a discrete autoencoder."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from tmatch.distribution.base import TokenDistribution, require_contexts
from tmatch.guidance import Branches
from tmatch.head import TimeCache
from tmatch.rng import RandomStreams
from tmatch.sampling import CodeSampling, SamplingParams
from tmatch.tensors import Time, positive_int


class Categorical(TokenDistribution):
    """p(B = k | h) = softmax(W h)_k, learnt by cross entropy; B is one of `codes` numbers, (..., 1).

    The backbone reads codes as learnt vectors of `channels` numbers.
    """

    continuous: ClassVar[bool] = False

    def __init__(self, codes: int, channels: int, width: int) -> None:
        super().__init__()
        self.codes = positive_int("The number of codes", codes)
        self.channels = 1
        self.head = None
        self.embedding = nn.Embedding(codes, channels)
        self.readout = nn.Linear(width, codes)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def require(self, b: Tensor) -> None:
        """Refuse what is no code of this codebook."""
        if b.shape[-1] != 1:
            raise ValueError(
                f"A code is a single number a token; got {b.shape[-1]}: encode with a discrete autoencoder."
            )
        if b.is_meta:  # there are no values to look at
            return
        if not torch.equal(b, b.round()):
            raise ValueError(
                "Codes are whole numbers: no noise can be added to them, so their rows make one transition."
            )
        if not 0 <= int(b.min()) <= int(b.max()) < self.codes:
            raise ValueError(
                f"Codes run from 0 to {self.codes - 1} here, and the data has {int(b.min())} to {int(b.max())}: "
                "was it encoded with another codebook?"
            )

    def embed(self, b: Tensor) -> Tensor:
        return self.embedding(b[..., 0].long())

    def logits(self, h: Tensor) -> Tensor:
        """log p(. | h) but for a constant, (..., codes), in float32 at least."""
        logits = self.readout(h.to(self.readout.weight.dtype))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def loss(self, b: Tensor, h: Tensor, t: Time | None, rng: RandomStreams) -> Tensor:
        """-log p(B | h)."""
        require_contexts(h, b)
        return cross_entropy(self.logits(h).movedim(-1, 1), b[..., 0].long(), reduction="none")

    def start(self, rng: RandomStreams, *tokens: int) -> Tensor:
        return rng.uniform(*tokens)

    def forward(
        self,
        start: Tensor,
        h: Tensor,
        t: Time | None,
        params: SamplingParams,
        branches: Branches,
        time_cache: TimeCache | None = None,
    ) -> Tensor:
        return self.draw(start, h, params.choice, branches)[0]

    def draw(self, u: Tensor, h: Tensor, choice: CodeSampling, branches: Branches) -> tuple[Tensor, Tensor]:
        """Codes (batch, ..., 1) from the guided logits, and the log-probability of each before any narrowing."""
        logits = branches.mix(self.logits(h))
        cumulative = filter_logits(logits, choice).softmax(-1).cumsum(-1)
        k = (cumulative < u[..., None] * cumulative[..., -1:]).sum(-1) if choice.temperature > 0 else logits.argmax(-1)
        log_p = log_softmax(logits, dim=-1).take_along_dim(k[..., None], dim=-1)[..., 0]
        return k[..., None].to(u.dtype), log_p


def filter_logits(logits: Tensor, choice: CodeSampling) -> Tensor:
    """The logits at a temperature, with all but the likeliest codes left out (top-k, then top-p)."""
    if choice.temperature > 0:
        logits = logits / choice.temperature
    if choice.top_k is not None and choice.top_k < logits.shape[-1]:
        likeliest = logits.topk(choice.top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, likeliest.indices, likeliest.values)
    if choice.top_p is not None and choice.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        gone = (before >= choice.top_p).scatter(-1, index, before >= choice.top_p)
        logits = logits.masked_fill(gone, -torch.inf)
    return logits
