"""Shape conventions, the broadcasting rule, devices and precision.

A state is a grid of tokens with channels last, (batch, *grid, channels): (batch, rows, columns, 16) for an image cut
into 2x2x4 patches, (batch, tokens, channels) for a sequence. A time is one number per batch or one per image, in
[0, 1]: the paper's t/T, so that the weights do not depend on the number of steps.
"""

import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Literal, SupportsIndex, get_args

import torch
from einops import rearrange
from torch import Tensor

from tmatch.config import MAX_COUNT

State = Tensor  # (batch, *grid, channels)
Time = Tensor  # () or (batch,), in [0, 1]; for s see tmatch.head.Head
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "tf32", "bfloat16"]
"""Precision of matrix products; weights, gradients, states and residual streams stay in float32."""


def expand_like(t: Tensor, x: Tensor) -> Tensor:
    """Append dimensions to t so that it broadcasts against x along the leading ones."""
    return t.reshape(t.shape + (1,) * (x.ndim - t.ndim)) if t.ndim else t


def expand_time(t: Time, x: Tensor) -> Time:
    """One time per image on x's device, in float32 or wider: bfloat16 would round 1000 t to 8 bits."""
    return t.to(x.device, torch.promote_types(x.dtype, torch.float32)).expand(len(x))


def positive_int(name: str, value: SupportsIndex, most: int = MAX_COUNT) -> int:
    """Return `value` as an int, or raise if it is not a positive integer of any integer type, or above `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer; got {value!r}.")
    if number > most:
        raise ValueError(f"{name} must be at most {most:,}; got {value!r}.")
    return number


def merge(x: State, patch: tuple[int, ...]) -> State:
    """Join neighbouring tokens: (b, r, c, d) -> (b, r/p, c/q, p q d); for sequences (b, n, d) -> (b, n/p, p d)."""
    grid = tuple(x.shape[1:-1])
    if len(patch) != len(grid) or any(size % p for size, p in zip(grid, patch, strict=True)):
        raise ValueError(f"The token grid {grid} is not divisible into patches of {patch}.")
    if len(patch) == 1:
        return rearrange(x, "b (n p) d -> b n (p d)", p=patch[0])
    return rearrange(x, "b (r p) (c q) d -> b r c (p q d)", p=patch[0], q=patch[1])


def split(x: State, patch: tuple[int, ...]) -> State:
    """Undo `merge`."""
    if len(patch) == 1:
        return rearrange(x, "b n (p d) -> b (n p) d", p=patch[0])
    return rearrange(x, "b r c (p q d) -> b (r p) (c q) d", p=patch[0], q=patch[1])


def require_shape(name: str, x: Tensor, shape: Sequence[int]) -> None:
    """Raise unless x has `shape` (*grid, channels) per image, which broadcasting would hide."""
    if tuple(x.shape[1:]) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape[1:])} per image; expected {tuple(shape)}.")


def require_tensor(name: str, x: Tensor) -> None:
    """Raise on anything but a tensor of real numbers with a batch dimension: on lists, arrays and complex numbers."""
    if not isinstance(x, Tensor) or x.is_complex() or x.ndim == 0:
        kind = f"{x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name} must be a tensor of real numbers with a batch dimension; got {kind}.")


def require_finite(name: str, x: Tensor) -> None:
    """Raise on NaN and infinity, and on anything but a tensor, where data enters; meta tensors pass."""
    require_tensor(name, x)
    if not x.is_meta and not torch.isfinite(x).all():
        raise ValueError(f"{name} contains non-finite values (NaN or infinity).")


def resolve_device(device: str | torch.device) -> torch.device:
    """The device to compute on: 'auto' is the accelerator if any; under torchrun, the GPU of the local rank."""
    if device == "auto":
        found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    else:
        found = _available(device)
    unindexed = found.type == "cuda" and found.index is None
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if unindexed else found


def _available(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        backend = getattr(torch, found.type)
        if backend.is_available() and (found.index or 0) < backend.device_count():
            return found
    except (RuntimeError, AttributeError):  # not a device, or one such as 'meta' that cannot compute
        pass
    raise ValueError(f"Device '{device}' is not available on this machine; use 'auto' or 'cpu'.")


def autocast_kind(device: torch.device) -> str:
    """The device type to query autocast for; models on the meta device are planned for a GPU."""
    return "cuda" if device.type == "meta" else device.type


def require_precision(precision: str) -> None:
    """Raise unless `precision` is supported."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}; got {precision!r}.")


@cache
def warn_if_emulated(precision: Precision, device: str) -> None:
    """Print once that bfloat16 is slow, on a CPU without instructions for it."""
    if precision == "bfloat16" and device == "cpu" and not has_native_bfloat16(torch.cpu.get_capabilities()):
        print("tmatch: bfloat16 is slower than float32 on this CPU, which only emulates it.", file=sys.stderr)


def has_native_bfloat16(capabilities: Mapping[str, object]) -> bool:
    """Whether a CPU with these capabilities multiplies bfloat16 matrices: AVX512_BF16 or AMX on x86, BF16 on ARM."""
    return any(present is True for name, present in capabilities.items() if name.endswith("bf16"))


@contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Run matrix products on a device in that precision; 'float32' keeps PyTorch's setting.

    'bfloat16' is autocast. 'tf32' is a process-wide setting, restored on exit, that only some hardware supports.
    """
    require_precision(precision)
    warn_if_emulated(precision, device.type)
    if precision == "bfloat16":
        with torch.autocast(device.type, torch.bfloat16):
            yield
    elif precision == "tf32":
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
    else:
        yield
