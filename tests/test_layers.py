"""Layers of backbones and heads."""

import torch
from torch import nn

from tmatch.layers import GELU


def test_a_compiled_gelu_equals_the_eager_one() -> None:
    """Values and gradients; compiled, the formula is another one, which must not overflow."""
    x, answers = torch.cat((torch.linspace(-6, 6, 401), torch.tensor([-1e4, 1e4]))), []
    for gelu in (GELU(), torch.compile(GELU(), backend="eager", fullgraph=True), nn.GELU(approximate="tanh")):
        mine = x.clone().requires_grad_()
        y = gelu(mine)
        y.sum().backward()
        answers.append(torch.stack((y.detach(), mine.grad)))
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[1], answers[2])
    torch.testing.assert_close(answers[1], answers[2], rtol=1e-5, atol=1e-6)
