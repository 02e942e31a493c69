"""What backbones and heads share."""

import pytest
import torch
from torch import nn

from tmatch.layers import GELU, RMSNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_norm_is_pytorchs(dtype: torch.dtype) -> None:
    """Values and gradients, of zeros and of tiny and large tokens too."""
    scales = torch.tensor([0, 1e-4, 1, 30])[:, None]  # a token each
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0)) * scales
    weight, answers = torch.linspace(0.5, 2, 8), []
    for norm in (RMSNorm(8), nn.RMSNorm(8, eps=1e-6)):
        norm.load_state_dict({"weight": weight})
        mine = x.clone().requires_grad_()
        y = norm.to(dtype)(mine.to(dtype))
        y.square().sum().backward()
        answers.append((y.detach(), mine.grad, norm.weight.grad))
    for ours, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_compiled_gelu_is_the_plain_one() -> None:
    """Values and gradients; the compiled one is another formula, of which nothing overflows."""
    x, answers = torch.cat((torch.linspace(-6, 6, 401), torch.tensor([-1e4, 1e4]))), []
    for gelu in (GELU(), torch.compile(GELU(), backend="eager", fullgraph=True), nn.GELU(approximate="tanh")):
        mine = x.clone().requires_grad_()
        y = gelu(mine)
        y.sum().backward()
        answers.append(torch.stack((y.detach(), mine.grad)))
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[1], answers[2])
    torch.testing.assert_close(answers[1], answers[2], rtol=1e-5, atol=1e-6)
