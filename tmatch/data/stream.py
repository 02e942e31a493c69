"""Data shards as an infinite stream of batches, the same for any number of processes."""

import os
import resource
import signal
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tmatch.codec.patch import Patchify
from tmatch.data.batches import BatchSource, permutation
from tmatch.data.shards import ShardSet
from tmatch.reading import first_line
from tmatch.tensors import State

Sample = tuple[int, int]
"""The number of a shard, and of a sample in it."""


class Batch(NamedTuple):
    """Samples of one size: few tensors, since each needs a file descriptor to pass from a worker."""

    latents: Tensor  # (n, channels, height, width)
    text: Tensor | None  # (tokens, width): the tokens of all captions, concatenated; None without captions
    lengths: list[int]  # of captions, in tokens
    labels: Sequence[int | None] = ()  # without captions

    @classmethod
    def of(cls, latents: Tensor, conditions: Sequence[Tensor | int | None]) -> "Batch":
        """From latents and the condition of each: the tokens of its caption, its label, or None."""
        captions = [one for one in conditions if isinstance(one, Tensor)]
        labels = [one for one in conditions if not isinstance(one, Tensor)]
        return cls(latents, torch.cat(captions) if captions else None, [len(one) for one in captions], labels)


class SampleOrder:
    """The order of samples in an infinite stream, as a function of the seed.

    Each epoch contains every sample once: it permutes the shards, and then the samples within each `window` of
    consecutive shards, so that only a few shards are read at a time.
    """

    def __init__(self, counts: Sequence[int], seed: int, window: int = 8) -> None:
        self.counts = list(counts)
        self.seed = seed
        self.window = window
        self.total = sum(counts)
        self._windows = lru_cache(2)(self._windows_of)
        self._samples = lru_cache(4)(self._samples_of)

    def _windows_of(self, epoch: int) -> tuple[list[list[int]], list[int]]:
        """The windows of an epoch, each a list of shards, and the position where each window ends."""
        order = permutation(len(self.counts), self.seed, "shards", epoch).tolist()
        windows = [order[first : first + self.window] for first in range(0, len(order), self.window)]
        return windows, list(accumulate(sum(self.counts[shard] for shard in window) for window in windows))

    def _samples_of(self, epoch: int, number: int) -> list[Sample]:
        samples = [(shard, k) for shard in self._windows(epoch)[0][number] for k in range(self.counts[shard])]
        return [samples[k] for k in permutation(len(samples), self.seed, "samples", epoch, number).tolist()]

    def _window(self, position: int) -> tuple[int, int, range]:
        """The epoch and the window of a position, and the range of positions of that window."""
        epoch, within = divmod(position, self.total)
        before, ends = epoch * self.total, self._windows(epoch)[1]
        number = bisect_right(ends, within)
        return epoch, number, range(before + (ends[number - 1] if number else 0), before + ends[number])

    def at(self, position: int) -> tuple[int, Sample]:
        """The epoch and the sample at a position."""
        epoch, number, window = self._window(position)
        return epoch, self._samples(epoch, number)[position - window.start]

    def shards(self, positions: range) -> set[int]:
        """All shards of the windows of some positions."""
        found, position = set[int](), positions.start
        while position < positions.stop:
            epoch, number, window = self._window(position)
            found.update(self._windows(epoch)[0][number])
            position = window.stop
        return found


class Stream:
    """Batches as a function of (seed, step), each of one size: the size that lags most behind its share of the samples.

    So all sizes advance together, within about a batch. A batch can be read in parts by any number of processes, which
    together read each sample once per epoch; a sample with several captions uses one per epoch, in turn.

    The readers of a machine verify the shards of each window between them; `among` is (index, count) of this reader.
    One of `readers` workers that serve steps in turn also verifies the shards of the steps in between.
    """

    def __init__(
        self, shards: ShardSet, seed: int = 0, window: int = 8, among: tuple[int, int] = (0, 1), readers: int = 1
    ) -> None:
        self.shards = shards
        self.among = among
        self.readers = readers
        listed = shards.manifest.shards
        sizes = sorted({shard.size for shard in listed})
        self.groups = [[k for k, shard in enumerate(listed) if shard.size == size] for size in sizes]
        self.orders = [SampleOrder([listed[k].samples for k in group], seed, window) for group in self.groups]
        self._taken = [0] * len(self.groups)
        self._turns = array("q")  # of each step, the number of earlier steps of its group, and the group

    def _turn(self, step: int, size: int) -> tuple[int, range]:
        """The group of a step, and the positions of its batch in the order of that group."""
        while len(self._turns) <= step:
            now, taken = len(self._turns) + 1, zip(self.orders, self._taken, strict=True)
            behind = [order.total * now - len(self.shards) * steps for order, steps in taken]
            group = behind.index(max(behind))
            self._turns.append(self._taken[group] * len(self.groups) + group)
            self._taken[group] += 1
        earlier, group = divmod(self._turns[step], len(self.groups))
        return group, range(earlier * size, (earlier + 1) * size)

    def samples(self, step: int, size: int) -> list[tuple[int, Sample]]:
        """The epoch and the sample of every element of a step's batch; shards are numbered as in the set."""
        group, positions = self._turn(step, size)
        found = map(self.orders[group].at, positions)
        return [(epoch, (self.groups[group][shard], sample)) for epoch, (shard, sample) in found]

    def check(self, step: int, size: int) -> None:
        """Verify this reader's share of the shards of a step and of the neighbouring steps of other workers."""
        rank, number = self.among
        for nearest in range(max(0, step - self.readers + 1), step + self.readers):
            group, positions = self._turn(nearest, size)
            for shard in sorted(self.groups[group][k] for k in self.orders[group].shards(positions)):
                if shard % number == rank:
                    self.shards.check(shard)

    def batch(self, step: int, size: int, part: int = 0, parts: int = 1) -> Batch:
        """A part of a step's batch."""
        self.check(step, size)
        chosen = self.samples(step, size)
        mine = [chosen[k] for k in torch.arange(size).tensor_split(parts)[part].tolist()]
        try:
            return self._read(mine)
        except Exception:
            for shard in sorted({shard for _, (shard, _) in mine}):
                self.shards.check(shard)  # report damage that another reader has not found yet
            raise

    def _read(self, chosen: Sequence[tuple[int, Sample]]) -> Batch:
        shards = [self.shards.read(shard, check=False) for _, (shard, _) in chosen]
        latents = [one.latents[sample] for one, (_, (_, sample)) in zip(shards, chosen, strict=True)]
        conditions = [one.condition(sample, epoch) for one, (epoch, (_, sample)) in zip(shards, chosen, strict=True)]
        with torch.autocast("cpu", enabled=False):  # keep the dtype of the shards
            return Batch.of(torch.stack(latents), conditions)


def step_parts(step: int, mine: range, first: int) -> Iterator[tuple[int, int]]:
    """Infinite (step, part): this process's parts of a step, starting at `first`, then of the next steps."""
    yield from ((step, part) for part in mine if part >= first)
    yield from ((later, part) for later in count(step + 1) for part in mine)


@dataclass(frozen=True)
class BatchParts(Dataset[Batch | Exception]):
    """Parts of batches by (step, part), for the workers of a `DataLoader`; each worker opens the shards itself."""

    folders: tuple[Path, ...]
    size: int
    parts: int = 1
    seed: int = 0
    window: int = 8
    among: tuple[int, int] = (0, 1)

    @cached_property
    def stream(self) -> Stream:
        """The stream of this worker."""
        (rank, number), worker = self.among, get_worker_info()
        readers, own = (1, 0) if worker is None else (worker.num_workers, worker.id)
        among = (rank * readers + own, number * readers)
        return Stream(ShardSet(*self.folders), self.seed, self.window, among, readers)

    def __getitem__(self, key: tuple[int, int]) -> Batch | Exception:
        step, part = key
        try:
            return self.stream.batch(step, self.size, part, self.parts)
        except (ValueError, OSError, MemoryError, RuntimeError) as error:  # raised in a worker, it would be a traceback
            return error

    def prefetch(self, keys: Iterator[tuple[int, int]], workers: int = 0, pinned: bool = False) -> Iterator[Batch]:
        """The batches of some keys, prefetched by `workers` processes, optionally into pinned memory."""
        loader = DataLoader(
            self, batch_size=None, sampler=keys, num_workers=workers, pin_memory=pinned, worker_init_fn=_ignore_signals
        )
        waiting: list[Batch] = []
        least, limit = 32 + 10 * workers, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if workers and 0 <= limit < least:  # they would fail or hang; -1 is infinity
            raise ValueError(f"{workers} workers need {least} file descriptors: run `ulimit -n {least}`, or use fewer.")
        try:
            for number, batch in enumerate(loader, 1):
                if isinstance(batch, Exception):
                    raise batch
                waiting.append(batch)
                if number >= workers:  # every worker has verified its share
                    yield from waiting
                    waiting.clear()
        except (OSError, EOFError, MemoryError, RuntimeError) as error:  # a worker did not start, or was killed
            if workers:
                reason = first_line(error)
                raise ValueError(f"One of {workers} workers failed ({reason}); set fewer --data.workers.") from error
            raise


def _ignore_signals(_: int) -> None:
    """Keep a worker alive when the process group is signalled; the trainer ends it after saving."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # otherwise the sender of a signal is unknown
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_sigterm_from_parent, daemon=True).start()


def _exit_on_sigterm_from_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@dataclass
class StreamedStates(BatchSource):
    """The share of the stream of process `rank` out of `world`, as states on a device.

    `among` is the rank and the number of processes on this machine, which verify the shards between them.
    """

    folders: tuple[Path, ...]
    patch: Patchify
    seed: int = 0
    window: int = 8
    workers: int = 0
    device: torch.device | str = "cpu"
    rank: int = 0
    world: int = 1
    among: tuple[int, int] = (0, 1)
    _next: tuple[int, ...] = ()
    _reader: Iterator[tuple[tuple[int, int], Batch]] = field(default=iter(()), repr=False)

    def batch(self, step: int, size: int, part: int, parts: int) -> tuple[State, Sequence[Any]]:
        on_gpu = torch.device(self.device).type == "cuda"
        if self._next != (step, part, size, parts):  # the first batch, or out of order
            mine = range(parts * self.rank // self.world, parts * (self.rank + 1) // self.world)
            source = BatchParts(self.folders, size, parts, self.seed, self.window, self.among)
            batches = source.prefetch(step_parts(step, mine, part), self.workers, on_gpu)
            self._reader = zip(islice(step_parts(step, mine, part), 1, None), batches, strict=False)
        following, batch = next(self._reader)
        self._next = (*following, size, parts)
        x = self.patch.encode(batch.latents.to(self.device, non_blocking=on_gpu).float())
        if batch.text is None:
            return x, batch.labels
        return x, batch.text.to(self.device, non_blocking=on_gpu).float().split(batch.lengths)
