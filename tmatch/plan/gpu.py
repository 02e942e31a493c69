"""Simulation of a GPU on the meta device: fused attention and autocast."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LOWERED = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.scaled_dot_product_attention, torch.matmul, Tensor.matmul,
    Tensor.__matmul__, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum,
}  # fmt: skip
"""Functions that CUDA autocast runs in bfloat16."""
RAISED = {F.layer_norm, F.rms_norm, F.group_norm, F.softmax, torch.softmax, Tensor.softmax}
"""Functions that it runs in float32, as far as networks call them."""


class GPUSimulationMode(TorchFunctionMode):
    """Attention by a fused kernel, and with `autocast` matrix products in bfloat16 as on CUDA.

    The meta device has no autocast, and its attention materializes the scores. The fused kernel recomputes them in the
    backward pass, which is counted. `copies` are the bytes of cast weights; autocast casts each weight once per step.
    """

    def __init__(self, autocast: bool = False) -> None:
        super().__init__()
        self.autocast = autocast
        self._cast: dict[Tensor, Tensor] = {}

    def __enter__(self) -> Self:
        self._before = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", self.autocast)  # networks may query it; meta tensors ignore it
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.set_autocast_enabled("cuda", self._before)

    @property
    def copies(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in self._cast.values())

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if self.autocast and func in LOWERED | RAISED:
            dtype = torch.bfloat16 if func in LOWERED else torch.float32
            args = [self._to(x, dtype) for x in args]
            kwargs = {name: self._to(x, dtype) for name, x in kwargs.items()}
        if func is F.scaled_dot_product_attention and not kwargs.get("enable_gqa"):
            return fused_attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _to(self, x: object, dtype: torch.dtype) -> object:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype == dtype:
            return x
        if not isinstance(x, nn.Parameter):
            return x.to(dtype)
        if x not in self._cast:
            self._cast[x] = x.to(dtype)
        return self._cast[x]


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run PyTorch's memory-efficient kernel, which takes a mask as a bias of the scores."""
    bias = attn_mask
    if bias is not None:
        bias = torch.zeros_like(bias, dtype=query.dtype) if bias.dtype == torch.bool else bias
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    keep = torch.is_grad_enabled()
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    out: Tensor = attention(query, key, value, bias, keep, dropout_p, is_causal, scale=scale)[0]
    return out
