"""Random numbers per image, independent of the batch."""

import hashlib
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Self, SupportsIndex

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's increment, as a signed 64-bit integer
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (2 ** (64 - bits) - 1)  # a logical shift: torch's is arithmetic


def _splitmix64(x: Tensor) -> Tensor:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014): a bijection that scrambles 64 bits."""
    x = (x ^ _shift(x, 30)) * _MIX[0]
    x = (x ^ _shift(x, 27)) * _MIX[1]
    return x ^ _shift(x, 31)


def as_seed(seed: SupportsIndex) -> int:
    """A seed as an int; raises if it is no integer or does not fit in 64 bits, where it would equal another seed."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise ValueError(f"A seed is an integer; got {seed!r}.") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"A seed is from -2**63 to 2**63 - 1; got {number}.")
    return number


@contextmanager
def seeded_init(seed: int) -> Iterator[None]:
    """Initialize networks built in this context, on the CPU, from the seed, and restore the global generator."""
    with torch.random.fork_rng(devices=[]):  # each of several processes would initialize all devices
        torch.default_generator.manual_seed(seed)
        yield


def next_seed(generator: torch.Generator) -> int:
    """A seed derived from the state of a PyTorch generator, which advances: the next seed differs."""
    digest = hashlib.blake2b(generator.get_state().numpy().tobytes(), digest_size=7).digest()
    seed = int.from_bytes(digest, "big")
    generator.manual_seed(seed)
    return seed


class RandomStreams:
    """One stream of random numbers per image: a pure function of (seed, position in the stream).

    An image gets the same numbers in any batch, and on any device up to the rounding of log and cos.
    """

    def __init__(
        self, seeds: Iterable[int] | Tensor, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        if not isinstance(seeds, Tensor):
            if not isinstance(seeds, Iterable):
                raise ValueError(f"seeds must be a list of integers, one per image; got {seeds!r}.")
            seeds = torch.tensor([as_seed(seed) for seed in seeds], dtype=torch.int64)
        if seeds.ndim != 1 or len(seeds) == 0 or seeds.dtype not in _INTEGERS:
            raise ValueError("seeds must be a non-empty 1-D list of integers, one per image.")
        self._keys = _splitmix64(_splitmix64(seeds.to(device, torch.int64)) + _GOLDEN)
        self._position = 0
        self.dtype = dtype

    @classmethod
    def derive(
        cls, seed: int, step: int, samples: int | Sequence[int] | Tensor, device: torch.device | str = "cpu"
    ) -> Self:
        """The streams of a training step, one per sample, from (seed, step, sample) alone."""
        digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
        base = int.from_bytes(digest, "big", signed=True)
        indices = torch.arange(samples) if isinstance(samples, int) else torch.as_tensor(samples)
        return cls(_splitmix64(indices + base), device)

    def __len__(self) -> int:
        return len(self._keys)

    def to(self, device: torch.device | str) -> Self:
        """The same streams, at the same position, on a device."""
        moved = copy(self)
        moved._keys = self._keys.to(device)
        return moved

    @property
    def device(self) -> torch.device:
        """The device the numbers are generated on."""
        return self._keys.device

    @property
    def time_dtype(self) -> torch.dtype:
        """The dtype of times: that of the noise, or float32 if that is wider."""
        return torch.promote_types(self.dtype, torch.float32)

    def _bits(self, count: int) -> Tensor:
        """The next `count` 64-bit words of every stream, (batch, count)."""
        positions = torch.arange(self._position + 1, self._position + 1 + count, device=self.device)
        self._position += count
        return _splitmix64(self._keys[:, None] + positions * _GOLDEN)

    def uniform(self, *shape: int) -> Tensor:
        """U(0, 1), (batch, *shape), never 0 or 1, in float32 or wider, since it is often a time."""
        bits = _shift(self._bits(math.prod(shape)), 41)
        return ((bits.float() + 0.5) * 2.0**-23).to(self.time_dtype).reshape(len(self), *shape)

    def normal(self, *shape: int) -> Tensor:
        """N(0, I), (batch, *shape), by the Box-Muller transform: each word gives two numbers."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        radius = ((_shift(bits, 32).float() + 0.5) * 2.0**-32).log_().mul_(-2).sqrt_()
        angle = (bits & 0xFFFFFFFF).float().mul_(2 * math.pi * 2.0**-32)
        pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1)
        return pairs.flatten(1)[:, :count].to(self.dtype).reshape(len(self), *shape)
