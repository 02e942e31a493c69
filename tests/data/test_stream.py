"""The order of samples in training on shards."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from numbered import shard_set

import tmatch as tm
import tmatch.data.shards as module
from tmatch.data.shards import ShardSet
from tmatch.data.stream import SampleOrder, Stream, StreamedStates


@pytest.mark.parametrize("window", [1, 3, 100])
def test_every_epoch_is_a_permutation_of_its_own(window: int) -> None:
    counts = [5, 1, 7, 3]
    order = SampleOrder(counts, seed=4, window=window)
    everything = {(shard, k) for shard, count in enumerate(counts) for k in range(count)}
    epochs = []
    for epoch in range(3):
        found = [order.at(epoch * 16 + k) for k in range(16)]
        assert {at for at, _ in found} == {epoch}
        assert {place for _, place in found} == everything
        epochs.append([place for _, place in found])
    assert epochs[0] != epochs[1] != epochs[2]
    assert [order.at(k)[1] for k in range(16)] != [SampleOrder(counts, 5, window).at(k)[1] for k in range(16)]


def test_few_shards_are_read_at_a_time() -> None:
    order = SampleOrder([10] * 20, seed=0, window=4)
    for first in range(0, 200, 40):
        assert len({order.at(k)[1][0] for k in range(first, first + 40)}) == 4


def share(rank: int, world: int) -> range:
    return range(6 * rank // world, 6 * (rank + 1) // world)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_on_any_number_of_ranks_each_sample_occurs_once_per_epoch(
    tmp_path: Path, ranks: int, workers: int
) -> None:
    """Three epochs of 48 samples in batches of 6; runs stop at random steps and resume from there."""
    folder = shard_set(tmp_path, {(2, 2): [20, 1, 15, 12]})
    chance = random.Random(7 * ranks + workers)
    seen: list[list[int]] = []
    step, last = 0, 3 * 48 // 6
    while step < last:
        until = min(last, step + chance.randint(1, 9))
        world = chance.choice([1, 2, 3]) if step else ranks
        runs = [
            StreamedStates(
                (folder,), tm.Patchify((1, 1)), 3, workers=workers if rank == 0 else 0, rank=rank, world=world
            )
            for rank in range(world)
        ]
        for now in range(step, until):
            parts = {part: run.batch(now, 6, part, 6) for rank, run in enumerate(runs) for part in share(rank, world)}
            assert sorted(parts) == list(range(6))
            seen.append([int(row) for x, _ in parts.values() for row in x[:, 0, 0, 0]])
        step = until
    for epoch in range(3):
        rows = Counter(row for batch in seen[epoch * 8 : (epoch + 1) * 8] for row in batch)
        assert rows == Counter(range(48))


SIZES = [(1, 4), (2, 2), (4, 1)]


def test_the_epochs_of_all_sizes_end_together(tmp_path: Path) -> None:
    """24 samples in batches of 3: every eight steps contain each sample once, whatever its size."""
    folder = shard_set(tmp_path, {(2, 2): [12], (1, 4): [3, 3], (4, 1): [6]})
    stream = Stream(ShardSet(folder), seed=1)
    for epoch in range(0, 60, 3):
        steps = range(8 * epoch, 8 * (epoch + 1))
        places = [place for step in steps for place in stream.samples(step, 3)]
        assert {at for at, _ in places} == {epoch}
        rows = [int(stream.shards.read(shard).rows[sample]) for _, (shard, sample) in places]
        assert sorted(rows) == list(range(24))
    assert {tuple(stream.batch(step, 3).latents.shape) for step in range(8)} == {(3, 1, *size) for size in SIZES}


def test_no_size_is_more_than_a_batch_off_its_share(tmp_path: Path) -> None:
    counts = dict(zip(SIZES, (5, 17, 9), strict=True))
    stream = Stream(ShardSet(shard_set(tmp_path, {size: [count] for size, count in counts.items()})))
    seen: dict[tuple[int, int], list[int]] = {size: [] for size in SIZES}
    for step in range(4500):
        for epoch, (shard, sample) in stream.samples(step, 4):
            size = stream.shards.manifest.shards[shard].size
            assert epoch == len(seen[size]) // counts[size]
            seen[size].append(sample)
        for size, count in counts.items():
            assert abs(len(seen[size]) - 4 * (step + 1) * count / 31) < 4
    for size, count in counts.items():
        epochs = [seen[size][first : first + count] for first in range(0, len(seen[size]) - count, count)]
        assert all(sorted(epoch) == list(range(count)) for epoch in epochs)


def test_missing_shards_are_reported_at_once(tmp_path: Path) -> None:
    folder = shard_set(tmp_path, {(2, 2): [3, 3, 3]})
    (folder / "0006.safetensors").unlink()
    with pytest.raises(ValueError, match=r"1 of the 3 shards .* are missing, among them .*0006.safetensors"):
        ShardSet(folder).require_files()


def test_captions_are_used_in_turn(tmp_path: Path) -> None:
    stream = Stream(ShardSet(shard_set(tmp_path, {(2, 2): [4]})), seed=0)
    lengths: dict[int, list[int]] = {}
    for step in range(4):  # one epoch each
        batch = stream.batch(step, 4)
        for latent, caption in zip(batch.latents, batch.text.split(batch.lengths), strict=True):
            lengths.setdefault(int(latent.mean()), []).append(len(caption))
            assert (caption == latent.mean()).all()
    assert lengths == {0: [1, 1, 1, 1], 1: [1, 2, 1, 2], 2: [1, 1, 1, 1], 3: [1, 2, 1, 2]}


def test_few_shards_stay_open_and_each_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN", 2)
    shards = ShardSet(shard_set(tmp_path, {(2, 2): [3, 3, 3]}))
    first = [shards.read(number).rows for number in range(3)]
    assert shards._samples.cache_info().currsize == 2
    monkeypatch.delattr(module.hashlib, "file_digest")
    assert all(torch.equal(shards.read(number).rows, rows) for number, rows in enumerate(first))


def test_a_batch_consists_of_two_tensors(tmp_path: Path) -> None:
    """Each needs a file descriptor to pass from a worker."""
    batch = Stream(ShardSet(shard_set(tmp_path, {(2, 2): [64]})), seed=0).batch(0, 64)
    assert [isinstance(value, torch.Tensor) for value in batch] == [True, True, False, False]
    assert all(type(length) is int for length in batch.lengths)


def test_a_part_is_the_same_in_any_order(tmp_path: Path) -> None:
    folder = shard_set(tmp_path, {(2, 2): [9, 4], (4, 1): [5]})
    states = StreamedStates((folder,), tm.Patchify((1, 1)))
    keys = [(step, part) for step in range(6) for part in range(2)]
    inline = {key: states.batch(key[0], 4, key[1], 2)[0] for key in keys}
    for key in random.Random(0).sample(keys, len(keys)):
        assert torch.equal(states.batch(key[0], 4, key[1], 2)[0], inline[key])
