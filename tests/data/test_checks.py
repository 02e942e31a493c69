"""Every shard is verified by one reader, before it is used."""

import os
import resource
from collections import Counter
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from numbered import shard_set
from safetensors.torch import load_file, save_file
from torch import Tensor

import tmatch as tm
import tmatch.data.shards as module
from tmatch.data.shards import ShardSet
from tmatch.data.stream import SampleOrder, Stream, StreamedStates

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The names of hashed shards, also by workers, with repetitions."""
    log, verified = tmp_path / "hashed.txt", module.read_tensors
    log.touch()

    def logged(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
        if sha256:
            written = os.open(log, os.O_WRONLY | os.O_APPEND)
            os.write(written, f"{path.name}\n".encode())
            os.close(written)
        return verified(path, sha256)

    monkeypatch.setattr(module, "read_tensors", logged)
    return lambda: log.read_text().splitlines()


def damage(file: Path, **how: Callable[[Tensor], Tensor]) -> None:
    """Change some of a shard's tensors; it can still be read."""
    tensors = load_file(file)
    save_file({name: how[name](tensor) if name in how else tensor for name, tensor in tensors.items()}, file)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_the_shards_of_positions_are_those_of_their_windows(window: int) -> None:
    order = SampleOrder([5, 1, 7, 3], seed=4, window=window)
    for first in range(40):
        for size in (1, 2, 9, 40):
            windows = {order._window(place)[:2] for place in range(first, first + size)}
            shards = {shard for epoch, number in windows for shard in order._windows(epoch)[0][number]}
            assert order.shards(range(first, first + size)) == shards
            assert {order.at(place)[1][0] for place in range(first, first + size)} <= shards


def test_readers_share_the_verification_of_a_step(tmp_path: Path, hashed: Callable[[], list[str]]) -> None:
    """Each shard is verified by one of them, in the step that first reads it."""
    folder = shard_set(tmp_path, {(2, 2): [4] * 6})
    streams = [Stream(ShardSet(folder), seed=1, window=2, among=(rank, 3)) for rank in range(3)]
    for step in range(4):  # an epoch
        used = {streams[0].shards.manifest.shards[shard].file for _, (shard, _) in streams[0].samples(step, 6)}
        for rank, stream in enumerate(streams):
            stream.batch(step, 6, rank, 3)
        assert used <= set(hashed())
    assert sorted(hashed()) == sorted(shard.file for shard in streams[0].shards.manifest.shards)


@pytest.mark.parametrize(("ranks", "workers", "accumulate"), [(1, 3, 1), (2, 0, 1), (2, 2, 3), (2, 5, 1)])
@pytest.mark.parametrize("window", [1, 4])
def test_a_machine_hashes_each_shard_once(
    ranks: int, workers: int, accumulate: int, window: int, tmp_path: Path, hashed: Callable[[], list[str]]
) -> None:
    """Over the workers of all processes, even if a window is shorter than a round of the workers."""
    folder = shard_set(tmp_path, {(2, 2): [6] * 7, (1, 4): [3, 9], (4, 1): [6]})
    everything, parts = Counter(shard.file for shard in ShardSet(folder).manifest.shards), ranks * accumulate
    for rank in range(ranks):
        states = StreamedStates(
            (folder,), tm.Patchify((1, 1)), 3, window, workers, rank=rank, world=ranks, among=(rank, ranks)
        )
        for step in range(10):  # an epoch of 60 samples
            for part in range(rank * accumulate, (rank + 1) * accumulate):
                states.batch(step, 6, part, parts)
    assert Counter(hashed()) == everything


@pytest.mark.parametrize("damaged", [0, 3, 5])
@pytest.mark.parametrize("workers", [0, 3])
def test_damage_is_found_before_it_is_used(damaged: int, workers: int, tmp_path: Path) -> None:
    """Even if another worker verifies the shard; all workers end then."""
    folder = shard_set(tmp_path, {(2, 2): [1] * 6})
    name = f"{damaged:04}.safetensors"
    damage(folder / name, text=lambda text: text + 0.5)
    states = StreamedStates((folder,), tm.Patchify((1, 1)), window=1, workers=workers)
    used: list[Tensor] = []
    others = active_children()
    with pytest.raises(ValueError, match=f"^The shard .*{name} is damaged"):
        used += (caption for step in range(6) for caption in states.batch(step, 1, 0, 1)[1])
    assert all((caption % 1 == 0).all() for caption in used)
    assert set(active_children()) <= set(others)


def test_unreadable_damage_is_reported_by_any_reader(tmp_path: Path) -> None:
    """Not as a division by zero, even if another reader verifies the shard."""
    folder = shard_set(tmp_path, {(2, 2): [4, 4]})
    damage(folder / "0004.safetensors", caption_ends=torch.zeros_like)
    with pytest.raises(ValueError, match=r"^The shard .*0004.safetensors is damaged"):
        Stream(ShardSet(folder), among=(0, 2)).batch(0, 8)


def test_workers_that_lack_file_descriptors_are_not_started(tmp_path: Path) -> None:
    """They would fail with a traceback, or hang."""
    states = StreamedStates((shard_set(tmp_path, {(2, 2): [4]}),), tm.Patchify((1, 1)), workers=8)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        with pytest.raises(ValueError, match="file descriptors"):
            states.batch(0, 1, 0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_killed_worker_is_reported(tmp_path: Path) -> None:
    states = StreamedStates((shard_set(tmp_path, {(2, 2): [4]}),), tm.Patchify((1, 1)), workers=1)
    others = active_children()
    states.batch(0, 1, 0, 1)
    for worker in set(active_children()) - set(others):
        worker.kill()
    with pytest.raises(ValueError, match=r"--data\.workers"):
        [states.batch(step, 1, 0, 1) for step in range(1, 100)]


def test_an_error_of_the_machine_in_a_worker_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(Stream, "batch", full)
    states = StreamedStates((shard_set(tmp_path, {(2, 2): [4]}),), tm.Patchify((1, 1)), workers=1)
    with pytest.raises(ValueError, match=r"\(out of memory\)"):
        states.batch(0, 1, 0, 1)
