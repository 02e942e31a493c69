"""The shapes everything is written in, and the one broadcasting rule.

A state is a grid of tokens with channels last, (batch, *grid, channels): (batch, rows, columns, 16) for an image cut
into 2x2x4 patches, (batch, tokens, channels) for a sequence. A time is one number for the whole batch or one an image,
in [0, 1]: the paper's t/T, so that the number of steps never reaches the weights.
"""

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Literal, SupportsIndex, get_args

import torch
from einops import rearrange
from torch import Tensor

State = Tensor  # (batch, *grid, channels)
Time = Tensor  # () or (batch,), in [0, 1]; s may also be one a token, (batch, *grid)
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "tf32", "bfloat16"]
"""Of matrix products; weights, gradients, states and sums over blocks are float32 throughout."""


def expand_like(t: Tensor, x: Tensor) -> Tensor:
    """Shape t so that it multiplies x along its leading axes."""
    return t.reshape(t.shape + (1,) * (x.ndim - t.ndim)) if t.ndim else t


def expand_time(t: Time, x: Tensor) -> Time:
    """One time an image on x's device, in float32 even where x is coarser: 1000 t must not be rounded to 8 bits."""
    return t.to(x.device, torch.promote_types(x.dtype, torch.float32)).expand(len(x))


def positive_int(name: str, value: SupportsIndex) -> int:
    """A whole number from 1 up, of any integer type."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} is a whole number from 1 up; got {value!r}.")
    return number


def merge(x: State, patch: tuple[int, ...]) -> State:
    """Join neighbouring tokens: (b, r, c, d) -> (b, r/p, c/q, p q d); for sequences (b, n, d) -> (b, n/p, p d)."""
    grid = x.shape[1:-1]
    if len(patch) != len(grid):
        raise ValueError(f"A patch {patch} does not fit a {len(grid)}-dimensional grid of tokens {tuple(grid)}.")
    if any(p < 1 or size % p for size, p in zip(grid, patch, strict=True)):
        raise ValueError(f"A grid of {tuple(grid)} tokens cannot be cut into patches of {patch}: it does not divide.")
    if len(patch) == 1:
        return rearrange(x, "b (n p) d -> b n (p d)", p=patch[0])
    return rearrange(x, "b (r p) (c q) d -> b r c (p q d)", p=patch[0], q=patch[1])


def split(x: State, patch: tuple[int, ...]) -> State:
    """Undo `merge`."""
    if x.ndim != len(patch) + 2 or x.shape[-1] % prod(patch):
        raise ValueError(f"Tokens {tuple(x.shape)} cannot be split into patches of {patch}.")
    if len(patch) == 1:
        return rearrange(x, "b n (p d) -> b (n p) d", p=patch[0])
    return rearrange(x, "b r c (p q d) -> b (r p) (c q) d", p=patch[0], q=patch[1])


def require_shape(name: str, x: Tensor, shape: Sequence[int]) -> None:
    """Refuse a state of another shape (*grid, channels) before broadcasting makes something of it."""
    if tuple(x.shape[1:]) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape[1:])} an image, where {tuple(shape)} is needed.")


def require_finite(name: str, x: Tensor) -> None:
    """Refuse NaN and infinity where data enters, before they turn every weight into NaN; meta tensors hold neither."""
    if not x.is_meta and not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).sum())
        raise ValueError(f"{name} holds {bad} non-finite values (NaN or infinity); clean the data before passing it.")


def resolve_device(device: str | torch.device) -> torch.device:
    """Where to compute; 'auto' is the accelerator if there is one. Of several, torchrun gives each process its own."""
    if device == "auto":
        found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    else:
        found = _there(device)
    own = found.type == "cuda" and found.index is None
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if own else found


def _there(device: str | torch.device) -> torch.device:
    """A device that this machine has."""
    try:
        found = torch.device(device)
        kind = getattr(torch, found.type)
        if kind.is_available() and (found.index or 0) < kind.device_count():
            return found
    except (RuntimeError, AttributeError):  # it is none, or holds no numbers
        pass
    raise ValueError(f"This machine has no '{device}' device; use 'auto' or 'cpu'.")


def autocast_kind(device: torch.device) -> str:
    """The kind of device that autocast is asked about; what is on the meta device is planned for a GPU."""
    return "cuda" if device.type == "meta" else device.type


def require_precision(precision: str) -> None:
    """Refuse a precision that matrix products cannot be asked for in."""
    if precision not in get_args(Precision):
        raise ValueError(f"Matrix products are in {', '.join(get_args(Precision))}; got {precision!r}.")


@contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Matrix products on a device in that precision; 'float32' leaves them as PyTorch is set, to float32 by default.

    'bfloat16' is autocast: weights and what is added up stay as they are. 'tf32' is for the whole process while it
    lasts, acts where the hardware has it, and is then set back.
    """
    require_precision(precision)
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
