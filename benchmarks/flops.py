"""FLOPs of a call on a CPU, attention among them: PyTorch's counter has formulas only for attention on GPUs."""

from collections.abc import Callable

import torch
from torch import Size
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten


def forward(query: Size, key: Size, value: Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(query, key, value)


def backward(grad: Size, query: Size, key: Size, value: Size, *_: object, **__: object) -> int:
    """The scores are computed again, and that counts, as it does on GPUs."""
    return sdpa_backward_flop_count(grad, query, key, value)


ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
}


def flops(call: Callable[[], object]) -> int:
    """Of a call: two for each multiplication of a product."""
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        call()
    return counter.get_total_flops()
