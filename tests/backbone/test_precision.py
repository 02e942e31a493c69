"""What is kept in which precision."""

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
def test_blocks_add_up_in_float32_under_autocast(name: str, weights: torch.dtype) -> None:
    """Whether weights are float32, as replicas have them, or bfloat16, as FSDP2 gathers them."""
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
def test_a_network_of_bfloat16_is_one_throughout(name: str) -> None:
    backbone, seen = BACKBONES[name]().bfloat16(), []
    backbone.blocks[1].register_forward_hook(lambda _, args, x: seen.append(x.dtype))
    t = torch.tensor([0.2, 0.7]) if getattr(backbone, "timed", False) else None
    backbone(torch.randn(2, 5, 4), t, tm.Condition.dense(torch.randn(2, 3, 8)), prefix=0)
    assert seen == [torch.bfloat16]
