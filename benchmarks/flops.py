"""FLOPs of a call on a CPU, including attention, which PyTorch's counter covers only on GPUs."""

from collections.abc import Callable

import torch
from torch import Size
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten


def forward(query: Size, key: Size, value: Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(query, key, value)


def backward(grad: Size, query: Size, key: Size, value: Size, *_: object, **__: object) -> int:
    """Counts the recomputed scores, as on GPUs."""
    return sdpa_backward_flop_count(grad, query, key, value)


ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
}


def flops(call: Callable[[], object]) -> int:
    """FLOPs of a call: two per multiply-add."""
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        call()
    return counter.get_total_flops()
