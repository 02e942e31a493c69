"""The same command once more: what is taken up, what is made again, and what is refused."""

import json
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sources import Encoders, contents, folder_of, image, preparation, rows
from torch import Tensor

from tmatch.app.cli import main
from tmatch.app.prepare import Encoding
from tmatch.data import shards
from tmatch.data.manifest import Chunk, alike
from tmatch.data.sources import open_source
from tmatch.data.sources.source import LETTERS, SAMPLED
from tmatch.files import write_text
from tmatch.prepare import Preparation
from tmatch.prepare.records import Records


def with_settings(work: Preparation, **changed: object) -> Preparation:
    work.settings = work.settings.model_copy(update=changed)
    return work


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("0*.safetensors")}


def rewrite(source: Path, change: Callable[[str], str]) -> None:
    file = source / "metadata.jsonl"
    file.write_text(change(file.read_text()))


def without_memory(*_: object) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")


def test_while_no_chunk_is_done_settings_may_change(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    with monkeypatch.context() as patch:
        patch.setattr(encoders[0], "encode", without_memory)
        with pytest.raises(ValueError, match=r"with 3 images at once; give a smaller --batch\.$"):
            preparation(source, tmp_path / "out", encoders, "centre").run()
    with monkeypatch.context() as patch:
        patch.setattr(encoders[1], "forward", without_memory)
        with pytest.raises(ValueError, match=r"with 2 captions at once; give a smaller --batch\.$"):
            with_settings(preparation(source, tmp_path / "out", encoders, "centre"), batch=2).run()
    for out in ("out", "new"):
        with_settings(preparation(source, tmp_path / out, encoders, "centre"), batch=1).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "new")
    with pytest.raises(ValueError, match="holds shards with another batch"):
        preparation(source, tmp_path / "out", encoders, "centre").run()


def test_advice_that_needs_a_new_folder_says_so(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    work, calls = preparation(source, tmp_path / "out", encoders, "centre"), 0
    encode = encoders[0].encode

    def later(images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return encode(images) if calls < 3 else without_memory()

    monkeypatch.setattr(encoders[0], "encode", later)
    with pytest.raises(ValueError, match="give a smaller --batch and a new folder"):
        work.run()


def test_the_first_of_several_processes_may_come_second_with_new_settings(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    (tmp_path / "out").mkdir()
    old = with_settings(preparation(source, tmp_path / "out", encoders), dtype="float16").settings
    write_text(tmp_path / "out" / "settings.json", old.model_dump_json())
    for rank in (1, 0):
        manifest = preparation(source, tmp_path / "out", encoders).run(rank=rank, world=2)
    assert manifest is not None
    assert manifest.settings.dtype == "float32"


GOOD = '{"file_name": "008.png", "text": "a blue circle"}'


@pytest.mark.parametrize(
    "bad",
    ['{"file_name": "008.png", "text": ""}', '{"file_name": "other.png", "text": "a"}', "no json", "{}", "[]"],
)
def test_a_line_that_was_mended_is_taken_and_only_its_chunk_is_made_again(
    bad: str, tmp_path: Path, encoders: Encoders
) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    rewrite(source, lambda text: "\n".join([*text.splitlines()[:8], bad]))
    first = preparation(str(source), tmp_path / "out", encoders).run()
    before = times(tmp_path / "out")
    rewrite(source, lambda text: text.replace(bad, GOOD))
    second = preparation(str(source), tmp_path / "out", encoders).run()
    assert first is not None
    assert second is not None
    assert (first.skipped, second.skipped, second.samples) == (1, 0, 9)
    after = times(tmp_path / "out")
    assert {name: after[name] for name in before if not name.startswith("000002")} == before
    preparation(str(source), tmp_path / "at once", encoders).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


def test_a_caption_that_was_changed_is_encoded_again_by_the_process_whose_it_is(
    tmp_path: Path, encoders: Encoders
) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    preparation(str(source), tmp_path / "out", encoders).run()
    rewrite(source, lambda text: text.replace('005.png", "text": "a red circle', '005.png", "text": "a blue circle'))
    for rank in (1, 0):
        preparation(str(source), tmp_path / "out", encoders).run(rank=rank, world=2)
    preparation(str(source), tmp_path / "at once", encoders).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


def listings(kind: str, folder: Path, captions: list[str]) -> list[str]:
    """What a source of eight images lists for the first four and for the others."""
    folder.mkdir()
    for k, caption in enumerate(captions):
        (folder / f"{k}.png").write_bytes(image(k))
        (folder / f"{k}.txt").write_text(caption)
    if kind == "tar":
        with tarfile.open(folder / "all.tar", "w") as tar:
            for file in sorted(folder.glob("*.[pt][nx]*")):
                tar.add(file, file.name)
    if kind == "table":
        table = {"image": [image(k) for k in range(len(captions))], "text": captions}
        Dataset.from_dict(table).to_parquet(folder / "all.parquet")
    source = open_source(str(folder / {"tar": "all.tar", "table": "all.parquet", "pairs": ""}[kind]))
    return [source.listed(range(4)), source.listed(range(4, 8))]


@pytest.mark.parametrize("kind", ["tar", "table", "pairs"])
def test_a_caption_is_of_what_is_listed_for_its_rows_and_no_others(kind: str, tmp_path: Path) -> None:
    captions = ["a red circle"] * 8
    before, same = (listings(kind, tmp_path / name, captions) for name in ("before", "same"))
    after = listings(kind, tmp_path / "after", ["a red circle", "", *captions[2:]])
    assert before == same
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_source_is_known_by_half_of_its_rows(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    preparation(str(source), tmp_path / "out", encoders).run()
    before = contents(tmp_path / "out")
    other = folder_of(tmp_path / "other", [(f"{k:03}.png", image(50 + k), "a red circle") for k in range(9)])
    with pytest.raises(ValueError, match="holds shards with another contents; give a new folder"):
        preparation(str(other), tmp_path / "out", encoders).run()
    rewrite(source, lambda text: text.replace('"text"', '"caption"'))
    with pytest.raises(ValueError, match="holds shards with another contents"):
        preparation(str(source), tmp_path / "out", encoders).run()
    assert contents(tmp_path / "out") == before
    a, b, none = ("a" * LETTERS, "b" * LETTERS, "-" * LETTERS)
    assert alike(a + b, a + a)
    assert alike(none + a, b + a)
    assert alike(none, a)
    assert not alike(a + none, b + none)
    assert not alike(a + b, none + none)
    assert not alike(a + b, a)


def test_the_contents_of_many_rows_are_some_of_them(tmp_path: Path) -> None:
    source = open_source(str(folder_of(tmp_path / "images", rows(2 * SAMPLED + 1))))
    assert len(source.contents) == SAMPLED * LETTERS


def test_a_source_may_lie_elsewhere_when_it_goes_on(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    preparation(str(source), tmp_path / "out", encoders).run()
    before = times(tmp_path / "out")
    shutil.move(source, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    manifest = preparation("moved", tmp_path / "out", encoders).run()
    assert manifest is not None
    assert manifest.settings.source == "moved"
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["source"] == "moved"
    assert times(tmp_path / "out") == before


def test_skipped_rows_are_looked_at_last_and_by_the_first_process_alone(tmp_path: Path, encoders: Encoders) -> None:
    images = rows(9)
    images[0], images[5] = (("a.png", b"bad", "a"), ("b.png", b"bad", "a"))
    source = str(folder_of(tmp_path / "images", images))
    preparation(source, tmp_path / "out", encoders).run()
    (tmp_path / "out" / "chunks" / "000002.json").unlink()
    for rank, expected in ((1, []), (0, [8, 0, 5])):
        work, read = preparation(source, tmp_path / "out", encoders), list[int]()
        own = work.image

        def counted(row: int, read: list[int] = read, own: Callable[[int], object] = own) -> object:
            read.append(row)
            return own(row)

        work.image = counted
        work.run(rank=rank, world=2, workers=1)
        assert read == expected


def test_a_long_look_at_what_is_there_is_said(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    preparation(source, tmp_path / "out", encoders).run()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("tmatch.data.sources.source.SILENCE", -1)
    preparation(source, tmp_path / "out", encoders).run()
    assert "is being held against its source: 2 chunks so far.\n" in capsys.readouterr().err


def test_what_was_seen_whole_is_not_opened_again(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    preparation(source, tmp_path / "out", encoders).run()
    (tmp_path / "out" / "chunks" / "000001.json").unlink()
    opened: list[int] = []
    own = Records.read

    def counted(records: Records, number: int) -> Chunk | None:
        opened.append(number)
        return own(records, number)

    naps = 0

    def nap(_: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 3:
            preparation(source, tmp_path / "out", encoders).run(rank=1, world=2)

    monkeypatch.setattr(Records, "read", counted)
    monkeypatch.setattr("tmatch.prepare.run.time.sleep", nap)
    assert preparation(source, tmp_path / "out", encoders).run(rank=0, world=2) is not None
    assert opened.count(0) == opened.count(2) == 1


def test_the_next_chunk_is_read_and_the_last_one_written_while_one_is_encoded(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(folder_of(tmp_path / "images", rows(60)))
    work = preparation(source, tmp_path / "out", encoders, "centre", chunk=20)
    read, encoding, chunks = [threading.Event() for _ in range(60)], threading.Event(), iter(range(3))
    own, conditions, write = work.image, work._conditions, shards.write

    def image(row: int) -> object:
        read[row].set()
        return own(row)

    def encoded(captions: object) -> object:
        chunk = next(chunks)
        assert chunk == 2 or read[20 * chunk + 35].wait(10), "images are read while captions are encoded"
        if chunk == 1:
            encoding.set()
        return conditions(captions)

    def written(path: Path, tensors: dict[str, Tensor]) -> str:
        assert encoding.wait(10), "the next chunk is encoded while one is written"
        return write(path, tensors)

    work.image, work._conditions = image, encoded
    monkeypatch.setattr("tmatch.prepare.run.write", written)
    work.run(workers=2)
    monkeypatch.undo()
    preparation(source, tmp_path / "again", encoders, "centre", chunk=20).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "again")


def test_what_cannot_be_written_ends_the_work_and_the_same_command_goes_on(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, write = str(folder_of(tmp_path / "images", rows(12))), shards.write

    def full(path: Path, tensors: dict[str, Tensor]) -> str:
        if path.name.startswith("000001"):
            raise OSError("make room")
        return write(path, tensors)

    monkeypatch.setattr("tmatch.prepare.run.write", full)
    with pytest.raises(OSError, match="make room"):
        preparation(source, tmp_path / "out", encoders).run()
    assert [file.name for file in (tmp_path / "out" / "chunks").iterdir()] == ["000000.json"]
    monkeypatch.undo()
    for out in ("out", "new"):
        preparation(source, tmp_path / out, encoders).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "new")


def test_a_chunk_that_is_being_written_is_whole_when_the_work_is_ended(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, write = str(folder_of(tmp_path / "images", rows(12))), shards.write
    work, begun, ended = preparation(source, tmp_path / "out", encoders, "centre"), threading.Event(), threading.Event()

    def slowly(path: Path, tensors: dict[str, Tensor]) -> str:
        begun.set()
        ended.wait(10)
        time.sleep(0.1)
        return write(path, tensors)

    def stopped(images: Tensor, own: Callable[[Tensor], Tensor] = work._latents) -> Tensor:
        if begun.wait(0.2):
            ended.set()
            raise KeyboardInterrupt
        return own(images)

    monkeypatch.setattr("tmatch.prepare.run.write", slowly)
    work._latents = stopped
    with pytest.raises(KeyboardInterrupt):
        work.run()
    assert sorted(contents(tmp_path / "out")) == ["000000-16x16.safetensors", "chunks/000000.json", "settings.json"]


def test_a_sign_of_life_is_given_about_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(os, "utime", told.append)
    records, time_cache = Records(tmp_path), iter(x / 10 for x in range(1000, 1000 + 80))
    monkeypatch.setattr("tmatch.prepare.records.time.monotonic", lambda: next(time_cache))
    for _ in range(60):
        records.heartbeat()
    assert 2 <= len(told) <= 8


def test_captions_are_cut_into_tokens_once_for_lengths_and_once_to_be_encoded(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = preparation(str(folder_of(tmp_path / "images", rows(12))), tmp_path / "out", encoders, "centre", chunk=12)
    calls: list[int] = []
    lengths = work.text.lengths
    monkeypatch.setattr(work.text, "lengths", lambda captions: calls.append(len(captions)) or lengths(captions))
    manifest = work.run()
    assert manifest is not None
    assert calls == [manifest.captions]


def test_both_encoders_have_a_precision_of_their_own(tmp_path: Path, encoders: Encoders) -> None:
    how = {"autoencoder": encoders[0].name, "text": encoders[1].name, "device": "cpu"}
    for given, expected in (
        ({"text_precision": "bfloat16"}, ("float32", "bfloat16")),
        ({"precision": "bfloat16"}, ("bfloat16", "bfloat16")),
        ({"precision": "bfloat16", "text_precision": "float32"}, ("bfloat16", "float32")),
    ):
        autoencoder, text = Encoding(**how, **given).encoders()
        assert (autoencoder.precision, text.precision) == expected
    command = ["prepare", str(folder_of(tmp_path / "images", rows(3))), "--out", str(tmp_path / "out")]
    command += ["--autoencoder", how["autoencoder"], "--text", how["text"], "--size", "16"]
    main([*command, "--text-precision", "bfloat16"])
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert (settings["autoencoder"]["precision"], settings["text"]["precision"]) == ("float32", "bfloat16")
