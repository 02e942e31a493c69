"""Rerunning the same command: which chunks are kept, which are encoded again, and what is rejected."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sources import Encoders, contents, folder_of, image, modified, pairs_of, preparation, prepared, rows, table, tar_of
from torch import Tensor

from tmatch.data.manifest import is_same_source
from tmatch.data.sources import open_source
from tmatch.data.sources.source import LETTERS, SAMPLED
from tmatch.prepare import Preparation


def rewrite(source: Path, change: Callable[[str], str]) -> None:
    file = source / "metadata.jsonl"
    file.write_text(change(file.read_text()))


def test_settings_may_change_until_a_chunk_is_complete(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    source, out = folder_of(tmp_path / "images", rows(9)), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(encoders[0], "encode", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            preparation(source, out, encoders, "centre").run()
    with monkeypatch.context() as patch:
        patch.setattr(encoders[1], "forward", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            preparation(source, out, encoders, "centre", batch_size=2).run()
    for name in ("out", "new"):
        prepared(source, tmp_path / name, encoders, kind="centre", batch_size=1)
    assert contents(out) == contents(tmp_path / "new")
    with pytest.raises(ValueError, match="contains shards with another batch_size"):
        preparation(source, out, encoders, "centre").run()
    (out / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"settings\.json is missing or damaged; use a new folder"):
        preparation(source, out, encoders, "centre", batch_size=1).run()


@pytest.mark.parametrize(
    "bad", ['{"file_name": "008.png", "text": ""}', '{"file_name": "other.png", "text": "a"}', "no json", "[]"]
)
def test_a_fixed_line_is_used_and_only_its_chunk_is_encoded_again(bad: str, tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    rewrite(source, lambda text: "\n".join([*text.splitlines()[:8], bad]))
    first = prepared(source, tmp_path / "out", encoders)
    before = modified(tmp_path / "out")
    rewrite(source, lambda text: text.replace(bad, '{"file_name": "008.png", "text": "a blue circle"}'))
    second = prepared(source, tmp_path / "out", encoders)
    assert (first.skipped, second.skipped, second.samples) == (1, 0, 9)
    after = modified(tmp_path / "out")
    assert {name: after[name] for name in before if not name.startswith("000002")} == before
    prepared(source, tmp_path / "new", encoders)
    assert contents(tmp_path / "out") == contents(tmp_path / "new")


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_changed_caption_and_a_fixed_image_are_encoded_again_by_any_process(
    order: tuple[int, int], tmp_path: Path, encoders: Encoders
) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    good = (source / "001.png").read_bytes()
    (source / "001.png").unlink()
    assert prepared(source, tmp_path / "out", encoders).skipped == 1
    before = contents(tmp_path / "out")
    prepared(source, tmp_path / "out", encoders)
    assert contents(tmp_path / "out") == before
    (source / "001.png").write_bytes(good)
    rewrite(source, lambda text: text.replace('005.png", "text": "a red circle', '005.png", "text": "a blue circle'))
    for rank in order:
        preparation(source, tmp_path / "out", encoders).run(rank=rank, world=2)
    prepared(source, tmp_path / "new", encoders)
    assert contents(tmp_path / "out") == contents(tmp_path / "new")


def test_a_row_that_is_fixed_during_a_run_is_used_by_the_next(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    good = (source / "001.png").read_bytes()
    (source / "001.png").unlink()
    work = preparation(source, tmp_path / "out", encoders)

    def fix(*given: object) -> object:
        (source / "001.png").write_bytes(good)
        return Preparation._latents(work, *given)

    work._latents = fix
    manifest = work.run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (8, 1)
    again = prepared(source, tmp_path / "out", encoders)
    assert (again.samples, again.skipped) == (9, 0)


@pytest.mark.parametrize("kind", ["tar", "table", "pairs"])
def test_a_caption_changes_the_listing_of_its_own_chunk_alone(kind: str, tmp_path: Path) -> None:
    def listings(name: str, captions: list[str]) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        if kind == "table":
            table(folder / "all.parquet", range(8), caption=captions)
        elif kind == "tar":
            members = [((f"{k}.png", image(k)), (f"{k}.txt", caption.encode())) for k, caption in enumerate(captions)]
            tar_of(folder / "all.tar", [member for pair in members for member in pair])
        else:
            for k, caption in enumerate(captions):
                (folder / f"{k}.png").write_bytes(image(k))
                (folder / f"{k}.txt").write_text(caption)
        source = open_source(str(folder), text="caption" if kind == "table" else "text")
        return [source.listed(range(4)), source.listed(range(4, 8))]

    captions = ["a red circle"] * 8
    before, same = listings("before", captions), listings("same", captions)
    after = listings("after", ["a red circle", "", *captions[2:]])
    assert before == same
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_source_is_recognized_by_half_of_its_rows(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    prepared(source, tmp_path / "out", encoders)
    before = contents(tmp_path / "out")
    other = folder_of(tmp_path / "other", [(f"{k:03}.png", image(50 + k), "a red circle") for k in range(9)])
    rewrite(source, lambda text: text.replace('"text"', '"caption"'))
    for changed in (other, source):
        with pytest.raises(ValueError, match="contains shards with another source; use a new folder"):
            preparation(changed, tmp_path / "out", encoders).run()
    assert contents(tmp_path / "out") == before
    a, b, none = ("a" * LETTERS, "b" * LETTERS, "-" * LETTERS)
    for then, now in ((a + b, a + a), (none + a, b + a), (none, a)):
        assert is_same_source(then, now)
    for then, now in ((a + none, b + none), (a + b, none + none), (a + b, a)):
        assert not is_same_source(then, now)
    assert len(open_source(str(pairs_of(tmp_path / "many", 2 * SAMPLED + 1))).contents) == SAMPLED * LETTERS


def test_source_and_encoders_may_move(tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    prepared(source, tmp_path / "out", encoders)
    before = modified(tmp_path / "out")
    shutil.move(source, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    autoencoder = {**encoders[0].identity(), "name": "elsewhere"}
    manifest = prepared("moved", tmp_path / "out", encoders, licence="MIT", autoencoder=autoencoder)
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert (settings["source"], settings["licence"], settings["autoencoder"]["name"]) == ("moved", "MIT", "elsewhere")
    assert manifest.settings.model_dump(mode="json") == json.loads(json.dumps(settings))
    assert modified(tmp_path / "out") == before, "nothing is encoded again"
    with pytest.raises(ValueError, match="contains shards with another autoencoder"):
        prepared("moved", tmp_path / "out", encoders, autoencoder={**autoencoder, "digest": "other"})


def test_a_truncated_shard_is_written_again(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    prepared(source, tmp_path / "out", encoders)
    before = contents(tmp_path / "out")
    shard = next((tmp_path / "out").glob("000001*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-7])
    (tmp_path / "out" / "chunks" / "000002.json").write_text("{")
    prepared(source, tmp_path / "out", encoders)
    assert contents(tmp_path / "out") == before


def test_a_failure_of_the_machine_skips_no_rows(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    work = preparation(source, tmp_path / "out", encoders)
    source.rename(tmp_path / "gone")
    with pytest.raises(OSError, match="no longer exists"):
        work.run()
    (tmp_path / "gone").rename(source)
    manifest = work.run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (9, 0)


def test_chunks_of_format_1_are_kept(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    prepared(source, tmp_path / "out", encoders)
    before, shards = contents(tmp_path / "out"), modified(tmp_path / "out")
    settings = json.loads(before["settings.json"])
    settings["batch"] = settings.pop("batch_size")
    settings["text"]["longest"] = settings["text"].pop("max_length")
    settings["autoencoder"]["codes"] = settings["autoencoder"].pop("codebook_size")
    (tmp_path / "out" / "settings.json").write_text(json.dumps(settings))
    for file in (tmp_path / "out" / "chunks").glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "settings": "digest"}))
    prepared(source, tmp_path / "out", encoders)
    assert modified(tmp_path / "out") == shards, "nothing is encoded again"
    assert contents(tmp_path / "out")["manifest.json"] == before["manifest.json"]
