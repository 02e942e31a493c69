"""Discrete tokens: the codes of a discrete autoencoder."""

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
    """p(B = k | h) = softmax(W h)_k, learned by cross entropy; B, (..., 1), is a code from 0 to codebook_size - 1.

    The backbone reads each code as a learned vector of `channels` numbers.
    """

    continuous: ClassVar[bool] = False

    def __init__(self, codebook_size: int, channels: int, width: int) -> None:
        super().__init__()
        self.codebook_size = positive_int("codebook_size", codebook_size)
        self.channels = 1
        self.head = None
        self.embedding = nn.Embedding(codebook_size, channels)
        self.readout = nn.Linear(width, codebook_size)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def require(self, b: Tensor) -> None:
        """Raise if `b` holds anything but codes of this codebook."""
        if b.shape[-1] != 1:
            raise ValueError("A discrete state has one code per token; encode the images with a discrete autoencoder.")
        if b.is_meta:  # there are no values to check
            return
        if not torch.equal(b, b.round()):
            raise ValueError("Codes are integers, to which no noise can be added: train discrete variants with T = 1.")
        low, high = int(b.min()), int(b.max())
        if not 0 <= low <= high < self.codebook_size:
            raise ValueError(f"The codes range from {low} to {high}, but the codebook has {self.codebook_size} codes.")

    def embed(self, b: Tensor) -> Tensor:
        return self.embedding(b[..., 0].long())

    def logits(self, h: Tensor) -> Tensor:
        """Unnormalized log p(. | h), (..., codebook_size), in float32 or wider."""
        logits = self.readout(h.to(self.readout.weight.dtype))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def loss(self, b: Tensor, h: Tensor, t: Time | None, rng: RandomStreams) -> Tensor:
        """-log p(B | h)."""
        require_contexts(h, b)
        return cross_entropy(self.logits(h).movedim(-1, 1), b[..., 0].long(), reduction="none")

    def base_noise(self, rng: RandomStreams, tokens: int) -> Tensor:
        """U(0, 1), to invert the cumulative distribution at."""
        return rng.uniform(tokens)

    def forward(
        self, noise: Tensor, h: Tensor, t: Time | None, params: SamplingParams, branches: Branches,
        cache: TimeCache | None = None,
    ) -> Tensor:  # fmt: skip
        return self.sample_codes(noise, h, params.codes, branches)[0]

    def nfe(self, params: SamplingParams) -> int:
        return 0

    def sample_codes(self, u: Tensor, h: Tensor, codes: CodeSampling, branches: Branches) -> tuple[Tensor, Tensor]:
        """Codes (batch, ..., 1) from the guided logits, and the log-probability of each before any filtering."""
        logits = branches.weighted_sum(self.logits(h))
        cumulative = filter_logits(logits, codes).softmax(-1).cumsum(-1)
        k = (cumulative < u[..., None] * cumulative[..., -1:]).sum(-1) if codes.temperature > 0 else logits.argmax(-1)
        log_p = log_softmax(logits, dim=-1).take_along_dim(k[..., None], dim=-1)[..., 0]
        return k[..., None].to(u.dtype), log_p


def filter_logits(logits: Tensor, codes: CodeSampling) -> Tensor:
    """Logits divided by the temperature, with all but the top-k, then top-p, codes set to -inf."""
    if codes.temperature > 0:
        logits = logits / codes.temperature
    if codes.top_k is not None and codes.top_k < logits.shape[-1]:
        top = logits.topk(codes.top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, top.indices, top.values)
    if codes.top_p is not None and codes.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        removed = (before >= codes.top_p).scatter(-1, index, before >= codes.top_p)
        logits = logits.masked_fill(removed, -torch.inf)
    return logits
