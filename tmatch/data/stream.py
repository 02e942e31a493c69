"""Shards as an endless stream of batches, the same for any number of processes."""

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

BLOCK = 4096  # steps whose sizes are found at once
Place = tuple[int, int]
"""A shard, and a sample of it."""


@dataclass(frozen=True)
class Batch:
    """Samples of one size; of several captions each has its turn, one an epoch.

    It is made of few tensors, for each takes a file descriptor on its way from a worker.
    """

    latents: Tensor  # (n, channels, height, width)
    text: Tensor  # (tokens, width): those of all captions, one after the other
    lengths: list[int]  # of the captions, in tokens
    rows: Tensor  # of the source

    @property
    def captions(self) -> tuple[Tensor, ...]:
        """The tokens (length, width) of each caption."""
        return self.text.split(self.lengths)

    def pin_memory(self) -> "Batch":
        """What goes to a GPU, where one can fetch it by itself; a `DataLoader` calls this."""
        return replace(self, latents=self.latents.pin_memory(), text=self.text.pin_memory())


class Order:
    """Which sample stands at each place of an endless stream, as a function of the seed.

    An epoch has every sample once. Its shards come in an order of its own, and are mixed within a `window` of them: so
    a disk is read a few shards at a time.
    """

    def __init__(self, counts: Sequence[int], seed: int, window: int = 8) -> None:
        self.counts = list(counts)
        self.seed = seed
        self.window = window
        self.total = sum(counts)
        self._shards = lru_cache(2)(self._shards_of)
        self._mixed = lru_cache(4)(self._mixed_of)

    def _shards_of(self, epoch: int) -> tuple[list[list[int]], list[int]]:
        """The windows of an epoch, each a list of shards, and where each ends."""
        order = permutation(len(self.counts), self.seed, "shards", epoch).tolist()
        windows = [order[first : first + self.window] for first in range(0, len(order), self.window)]
        return windows, list(accumulate(sum(self.counts[shard] for shard in window) for window in windows))

    def _mixed_of(self, epoch: int, number: int) -> list[Place]:
        """The samples of a window, mixed."""
        samples = [(shard, k) for shard in self._shards(epoch)[0][number] for k in range(self.counts[shard])]
        return [samples[k] for k in permutation(len(samples), self.seed, "samples", epoch, number).tolist()]

    def _window(self, place: int) -> tuple[int, int, range]:
        """The epoch and the window that a place is in, and the places of that window."""
        epoch, within = divmod(place, self.total)
        before, ends = epoch * self.total, self._shards(epoch)[1]
        number = bisect_right(ends, within)
        return epoch, number, range(before + (ends[number - 1] if number else 0), before + ends[number])

    def at(self, place: int) -> tuple[int, Place]:
        """The epoch that a place is in, and the sample there."""
        epoch, number, places = self._window(place)
        return epoch, self._mixed(epoch, number)[place - places.start]

    def shards(self, places: range) -> set[int]:
        """All shards of the windows that some places are in."""
        found: set[int] = set()
        place = places.start
        while place < places.stop:
            epoch, number, window = self._window(place)
            found.update(self._shards(epoch)[0][number])
            place = window.stop
        return found


class Stream:
    """Batches by (seed, step), each of one size: the one that is furthest behind its share of the samples.

    So no size gets ahead of the others by more than a batch or so, and their epochs end together. A batch may be asked
    for in parts, by as many processes as there are: together they have each sample once an epoch, whatever their
    number, and a step has the same samples whenever it is asked for.

    Shards are checked a window at a time by the readers of a machine between them, of which this is one `among` others:
    (rank, number). One that takes turns with `readers` in all checks what the steps between its own need, too.
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
        self.orders = [Order(count, seed, window) for count in counts]
        self._blocks: list[tuple[list[int], list[int]]] = []

    def __len__(self) -> int:
        return len(self.shards)

    def _turns(self, block: int) -> tuple[list[int], list[int]]:
        """The size of each step of a block, and how often each size had its turn before it."""
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
        """The size whose turn a step is, and the places of the step's batch in the order of that size."""
        block, within = divmod(step, BLOCK)
        turns, before = self._turns(block)
        group = turns[within]
        first = (before[group] + turns[:within].count(group)) * size
        return group, range(first, first + size)

    def places(self, step: int, size: int) -> list[tuple[int, Place]]:
        """The epoch and the sample of every place of a step's batch; shards as numbers of the set."""
        group, places = self._turn(step, size)
        found = map(self.orders[group].at, places)
        return [(epoch, (self.groups[group][shard], sample)) for epoch, (shard, sample) in found]

    def check(self, step: int, size: int) -> None:
        """Check this reader's share of the shards of a step, and of those since its last and until its next."""
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
            for shard in sorted({shard for _, (shard, _) in mine}):  # damage that another has yet to find is said first
                self.shards.check(shard)
            raise

    def _read(self, places: Sequence[tuple[int, Place]]) -> Batch:
        latents, captions, rows = [], [], []
        for epoch, (shard, sample) in places:
            samples = self.shards.read(shard, check=False)
            latents.append(samples.latents[sample])
            captions.append(samples.caption(sample, epoch))
            rows.append(samples.rows[sample])
        with torch.autocast("cpu", enabled=False):  # nothing is computed, and float16 stays what it is
            return Batch(torch.stack(latents), torch.cat(captions), [len(one) for one in captions], torch.stack(rows))


@dataclass(frozen=True)
class Keys:
    """(step, part) for ever, in the order a process asks for them: its own parts of a step, then of the next."""

    step: int
    mine: range
    first: int  # part of the first step

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from ((self.step, part) for part in self.mine if part >= self.first)
        yield from ((step, part) for step in count(self.step + 1) for part in self.mine)


@dataclass(frozen=True)
class Parts(Dataset[Batch | ValueError]):
    """Parts of batches by (step, part), for the workers of a `DataLoader`: each opens the shards for itself."""

    folders: tuple[Path, ...]
    size: int
    parts: int = 1
    seed: int = 0
    window: int = 8
    among: tuple[int, int] = (0, 1)

    @cached_property
    def stream(self) -> Stream:
        """The stream they are parts of, as this worker reads it."""
        (rank, number), worker = self.among, get_worker_info()
        readers, own = (1, 0) if worker is None else (worker.num_workers, worker.id)
        among = (rank * readers + own, number * readers)
        return Stream(ShardSet(*self.folders), self.seed, self.window, among, readers)

    def __getitem__(self, key: tuple[int, int]) -> Batch | ValueError:
        step, part = key
        try:
            return self.stream.batch(step, self.size, part, self.parts)
        except ValueError as error:  # a damaged shard: raised in a worker, its sentence would be lost
            return error

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "stream"}

    def ahead(self, keys: Keys, workers: int = 0, pinned: bool = False) -> Iterator[Batch]:
        """What the keys say, read ahead by so many workers; pinned, so that a GPU fetches it while it computes."""
        loader = DataLoader(
            self, batch_size=None, sampler=keys, num_workers=workers, pin_memory=pinned, worker_init_fn=_undisturbed
        )
        locked: list[Batch] = []
        for number, batch in enumerate(loader, 1):
            if isinstance(batch, ValueError):
                raise batch
            locked.append(batch)
            if number >= workers:  # none is used before every worker has checked its share
                yield from locked
                locked.clear()


def _undisturbed(_: int) -> None:
    """Have a worker read on when the whole run is told to end: the trainer needs it until it has saved, and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # else there is no telling who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_until_the_trainer_ends_it, daemon=True).start()


def _until_the_trainer_ends_it() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


class StreamedStates(BatchSource):
    """A process's share of the stream, as states on a device: of `world` processes, that of this `rank`."""

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
        """`among` is its rank, and how many there are, on its machine: who checks which shards."""
        self.folders = (folders,) if isinstance(folders, Path) else folders
        self.patch = patch
        self.seed = seed
        self.window = window
        self.workers = workers
        self.device = device
        self.rank = rank
        self.world = world
        self.among = among
        self._asked: tuple[int, int, int, int] | None = None
        self._reader: Iterator[tuple[tuple[int, int], Batch]] = iter(())

    def batch(self, step: int, size: int, part: int, parts: int) -> tuple[State, Sequence[Tensor]]:
        on_gpu = torch.device(self.device).type == "cuda"
        if self._asked != (step, part, size, parts):  # the first, or out of turn
            mine = range(parts * self.rank // self.world, parts * (self.rank + 1) // self.world)
            keys = Keys(step, mine, part)
            source = Parts(self.folders, size, parts, self.seed, self.window, self.among)
            self._reader = zip(islice(keys, 1, None), source.ahead(keys, self.workers, on_gpu), strict=False)
        following, batch = next(self._reader)
        self._asked = (*following, size, parts)
        latents, text = (one.to(self.device, non_blocking=on_gpu).float() for one in (batch.latents, batch.text))
        return self.patch.encode(latents), text.split(batch.lengths)
