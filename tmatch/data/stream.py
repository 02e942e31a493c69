"""Data shards as an infinite stream of batches, the same for any number of processes."""

import os
import signal
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, count, islice
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tmatch.codec.patch import Patchify
from tmatch.data.batches import BatchSource
from tmatch.data.memory import permutation
from tmatch.data.shards import ShardSet
from tmatch.tensors import State

BLOCK = 4096  # steps whose sizes are computed at once
Place = tuple[int, int]
"""The number of a shard, and of a sample in it."""


@dataclass(frozen=True)
class Batch:
    """Samples of one size; a sample with several captions uses one per epoch, in turn.

    It consists of few tensors, since each needs a file descriptor to pass from a worker.
    """

    latents: Tensor  # (n, channels, height, width)
    text: Tensor  # (tokens, width): the tokens of all captions, concatenated
    lengths: list[int]  # of captions, in tokens
    rows: Tensor  # row numbers in the source

    @property
    def captions(self) -> tuple[Tensor, ...]:
        """The tokens (length, width) of each caption."""
        return self.text.split(self.lengths)

    def pin_memory(self) -> "Batch":
        """The batch in pinned memory; called by `DataLoader`."""
        return replace(self, latents=self.latents.pin_memory(), text=self.text.pin_memory())


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
        self._shards = lru_cache(2)(self._shards_of)
        self._permuted = lru_cache(4)(self._permuted_of)

    def _shards_of(self, epoch: int) -> tuple[list[list[int]], list[int]]:
        """The windows of an epoch, each a list of shards, and the position where each window ends."""
        order = permutation(len(self.counts), self.seed, "shards", epoch).tolist()
        windows = [order[first : first + self.window] for first in range(0, len(order), self.window)]
        return windows, list(accumulate(sum(self.counts[shard] for shard in window) for window in windows))

    def _permuted_of(self, epoch: int, number: int) -> list[Place]:
        """The samples of a window, permuted."""
        samples = [(shard, k) for shard in self._shards(epoch)[0][number] for k in range(self.counts[shard])]
        return [samples[k] for k in permutation(len(samples), self.seed, "samples", epoch, number).tolist()]

    def _window(self, place: int) -> tuple[int, int, range]:
        """The epoch and the window of a position, and the range of positions of that window."""
        epoch, within = divmod(place, self.total)
        before, ends = epoch * self.total, self._shards(epoch)[1]
        number = bisect_right(ends, within)
        return epoch, number, range(before + (ends[number - 1] if number else 0), before + ends[number])

    def at(self, place: int) -> tuple[int, Place]:
        """The epoch and the sample at a position."""
        epoch, number, places = self._window(place)
        return epoch, self._permuted(epoch, number)[place - places.start]

    def shards(self, places: range) -> set[int]:
        """All shards of the windows of some positions."""
        found: set[int] = set()
        place = places.start
        while place < places.stop:
            epoch, number, window = self._window(place)
            found.update(self._shards(epoch)[0][number])
            place = window.stop
        return found


class Stream:
    """Batches as a function of (seed, step), each of one size: the size that lags most behind its share of the samples.

    So all sizes advance together, within about a batch. A batch can be read in parts by any number of processes, which
    together read each sample once per epoch.

    The readers of a machine verify the shards of each window between them; `among` is (index, count) of this reader.
    One of `readers` workers that serve steps in turn also verifies the shards of the steps in between.
    """

    def __init__(
        self, shards: ShardSet, seed: int = 0, window: int = 8, among: tuple[int, int] = (0, 1), readers: int = 1
    ) -> None:
        self.shards = shards
        self.among = among
        self.readers = readers
        sizes: dict[tuple[int, int], list[int]] = {}
        for number, shard in enumerate(shards.manifest.shards):
            sizes.setdefault(shard.size, []).append(number)
        self.groups = [sizes[size] for size in sorted(sizes)]
        counts = [[shards.manifest.shards[number].samples for number in group] for group in self.groups]
        self.orders = [SampleOrder(count, seed, window) for count in counts]
        self._blocks: list[tuple[list[int], list[int]]] = []

    def __len__(self) -> int:
        return len(self.shards)

    def _turns(self, block: int) -> tuple[list[int], list[int]]:
        """The size of each step in a block, and the number of earlier steps of each size."""
        total, totals = len(self), [order.total for order in self.orders]
        while len(self._blocks) <= block:
            turns, before = self._blocks[-1] if self._blocks else ([], [0] * len(self.orders))
            before = [taken + turns.count(group) for group, taken in enumerate(before)]
            taken, turns = list(before), []
            for step in range(len(self._blocks) * BLOCK, (len(self._blocks) + 1) * BLOCK):
                behind = [own * (step + 1) - total * n for own, n in zip(totals, taken, strict=True)]
                turns.append(behind.index(max(behind)))
                taken[turns[-1]] += 1
            self._blocks.append((turns, before))
        return self._blocks[block]

    def _turn(self, step: int, size: int) -> tuple[int, range]:
        """The size of a step, and the positions of its batch in the order of that size."""
        block, within = divmod(step, BLOCK)
        turns, before = self._turns(block)
        group = turns[within]
        first = (before[group] + turns[:within].count(group)) * size
        return group, range(first, first + size)

    def places(self, step: int, size: int) -> list[tuple[int, Place]]:
        """The epoch and the sample of every element of a step's batch; shards are numbered as in the set."""
        group, places = self._turn(step, size)
        found = map(self.orders[group].at, places)
        return [(epoch, (self.groups[group][shard], sample)) for epoch, (shard, sample) in found]

    def check(self, step: int, size: int) -> None:
        """Verify this reader's share of the shards of a step and of the neighbouring steps of other workers."""
        rank, number = self.among
        for nearest in range(max(0, step - self.readers + 1), step + self.readers):
            group, places = self._turn(nearest, size)
            for shard in sorted(self.groups[group][k] for k in self.orders[group].shards(places)):
                if shard % number == rank:
                    self.shards.check(shard)

    def batch(self, step: int, size: int, part: int = 0, parts: int = 1) -> Batch:
        """A part of a step's batch."""
        self.check(step, size)
        chosen = self.places(step, size)
        mine = [chosen[k] for k in torch.arange(size).tensor_split(parts)[part].tolist()]
        try:
            return self._read(mine)
        except Exception:
            for shard in sorted(
                {shard for _, (shard, _) in mine}
            ):  # report damage that another reader has not found yet
                self.shards.check(shard)
            raise

    def _read(self, places: Sequence[tuple[int, Place]]) -> Batch:
        latents, captions, rows = [], [], []
        for epoch, (shard, sample) in places:
            samples = self.shards.read(shard, check=False)
            latents.append(samples.latents[sample])
            captions.append(samples.caption(sample, epoch))
            rows.append(samples.rows[sample])
        with torch.autocast("cpu", enabled=False):  # keep the dtype of the shards
            return Batch(torch.stack(latents), torch.cat(captions), [len(one) for one in captions], torch.stack(rows))


@dataclass(frozen=True)
class StepParts:
    """An infinite sequence of (step, part): this process's parts of a step, then of the next step."""

    step: int
    mine: range
    first: int  # the first part of the first step

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from ((self.step, part) for part in self.mine if part >= self.first)
        yield from ((step, part) for step in count(self.step + 1) for part in self.mine)


@dataclass(frozen=True)
class BatchParts(Dataset[Batch | ValueError]):
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

    def __getitem__(self, key: tuple[int, int]) -> Batch | ValueError:
        step, part = key
        try:
            return self.stream.batch(step, self.size, part, self.parts)
        except ValueError as error:  # a damaged shard; raised in a worker, its message would be lost
            return error

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "stream"}

    def prefetch(self, keys: StepParts, workers: int = 0, pinned: bool = False) -> Iterator[Batch]:
        """The batches of some keys, prefetched by `workers` processes, optionally into pinned memory."""
        loader = DataLoader(
            self, batch_size=None, sampler=keys, num_workers=workers, pin_memory=pinned, worker_init_fn=_ignore_signals
        )
        waiting: list[Batch] = []
        for number, batch in enumerate(loader, 1):
            if isinstance(batch, ValueError):
                raise batch
            waiting.append(batch)
            if number >= workers:  # every worker has verified its share
                yield from waiting
                waiting.clear()


def _ignore_signals(_: int) -> None:
    """Keep a worker alive when the whole process group is signalled; the trainer ends it after saving."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # otherwise the sender of a signal is unknown
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_sigterm_from_parent, daemon=True).start()


def _exit_on_sigterm_from_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


class StreamedStates(BatchSource):
    """The share of the stream of process `rank` out of `world`, as states on a device."""

    def __init__(
        self,
        folders: Path | tuple[Path, ...],
        patch: Patchify,
        seed: int = 0,
        window: int = 8,
        workers: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        among: tuple[int, int] = (0, 1),
    ) -> None:
        """`among` is the rank and the number of processes on this machine, which verify the shards between them."""
        self.folders = (folders,) if isinstance(folders, Path) else folders
        self.patch = patch
        self.seed = seed
        self.window = window
        self.workers = workers
        self.device = device
        self.rank = rank
        self.world = world
        self.among = among
        self._next: tuple[int, int, int, int] | None = None
        self._reader: Iterator[tuple[tuple[int, int], Batch]] = iter(())

    def batch(self, step: int, size: int, part: int, parts: int) -> tuple[State, Sequence[Tensor]]:
        on_gpu = torch.device(self.device).type == "cuda"
        if self._next != (step, part, size, parts):  # the first batch, or out of order
            mine = range(parts * self.rank // self.world, parts * (self.rank + 1) // self.world)
            keys = StepParts(step, mine, part)
            source = BatchParts(self.folders, size, parts, self.seed, self.window, self.among)
            self._reader = zip(islice(keys, 1, None), source.prefetch(keys, self.workers, on_gpu), strict=False)
        following, batch = next(self._reader)
        self._next = (*following, size, parts)
        latents, text = (one.to(self.device, non_blocking=on_gpu).float() for one in (batch.latents, batch.text))
        return self.patch.encode(latents), text.split(batch.lengths)
