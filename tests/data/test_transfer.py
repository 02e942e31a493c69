"""Transfer of batches to a device; the meta device stands in for a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from copies import Copies
from numbered import shard_set
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

import tmatch as tm
from tmatch.data.shards import ShardSet
from tmatch.data.stream import Batch, BatchParts, Stream, StreamedStates


def test_a_batch_is_transferred_in_two_copies_in_its_dtype(tmp_path: Path) -> None:
    folder = shard_set(tmp_path, {(2, 2): [16]}, torch.float16)
    states = StreamedStates((folder,), tm.Patchify((1, 1)), device="meta")
    with Copies("meta") as copies:
        x, captions = states.batch(0, 16, 0, 1)
    assert copies.dtypes == [torch.float16] * 2
    assert {(one.device.type, one.dtype) for one in (x, *captions)} == {("meta", torch.float32)}


def test_states_and_captions_equal_the_shards(tmp_path: Path) -> None:
    folder = shard_set(tmp_path, {(2, 2): [16]}, torch.float16)
    kept, patch = Stream(ShardSet(folder)).batch(1, 16), tm.Patchify((1, 1))
    x, captions = StreamedStates((folder,), patch).batch(1, 16, 0, 1)
    assert torch.equal(x, patch.encode(kept.latents.float()))
    assert torch.equal(torch.cat(captions), kept.text.float())
    assert [len(caption) for caption in captions] == kept.lengths


@pytest.mark.parametrize(("device", "expected"), [("cuda", True), (torch.device("cuda", 1), True), ("cpu", False)])
def test_memory_is_pinned_for_gpus(
    device: torch.device | str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinning = []

    def prefetch(self: BatchParts, keys: object, workers: int, pinned: bool) -> Iterator[Batch]:
        pinning.append(pinned)
        return iter(())

    monkeypatch.setattr(BatchParts, "prefetch", prefetch)
    with pytest.raises(StopIteration):
        StreamedStates((tmp_path,), tm.Patchify((1, 1)), device=device).batch(0, 1, 0, 1)
    assert pinning == [expected]


def test_a_batch_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `DataLoader`, which passes errors of a worker through."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 1)
    found = pin_memory(Batch(torch.zeros(2), torch.zeros(2), [1, 2]))
    assert (found.latents.tolist(), found.text.tolist(), found.lengths) == ([1, 1], [1, 1], [1, 2])
    labelled = pin_memory(Batch(torch.zeros(2), None, [], [1, None]))
    assert (labelled.latents.tolist(), labelled.text, labelled.labels) == ([1, 1], None, [1, None])
    error = ValueError("damaged")
    assert pin_memory(error) is error
