"""The precision of residual streams."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tmatch as tm

BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "dit": lambda: tm.DiT(4, 16, 3, 2, condition_width=8, qk_norm=True, timed=False),
    "timed dit": lambda: tm.DiT(4, 16, 3, 2, condition_width=8),
    "llama": lambda: tm.Llama(4, 16, 3, 2, condition_width=8),
}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=["replicated", "gathered"])
def test_residual_streams_are_float32_under_autocast(name: str, weights: torch.dtype) -> None:
    """With float32 weights, as under DDP, and with bfloat16 ones, as FSDP2 gathers them."""
    backbone, seen = BACKBONES[name]().to(weights), []
    for block in backbone.blocks:
        block.register_forward_hook(lambda _, args, x: seen.append(x.dtype))
    t = torch.tensor([0.2, 0.7]) if getattr(backbone, "timed", False) else None
    with torch.autocast("cpu", torch.bfloat16):
        h = backbone(torch.randn(2, 5, 4), t, tm.Condition.dense(torch.randn(2, 3, 8)), prefix=0)
        h.square().mean().backward()
    assert seen == [torch.float32] * 3
    assert h.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


@pytest.mark.parametrize("name", BACKBONES)
def test_a_bfloat16_network_stays_in_bfloat16(name: str) -> None:
    backbone, seen = BACKBONES[name]().bfloat16(), []
    backbone.blocks[1].register_forward_hook(lambda _, args, x: seen.append(x.dtype))
    t = torch.tensor([0.2, 0.7]) if getattr(backbone, "timed", False) else None
    backbone(torch.randn(2, 5, 4), t, tm.Condition.dense(torch.randn(2, 3, 8)), prefix=0)
    assert seen == [torch.bfloat16]
