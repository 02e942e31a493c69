"""From captioned images to shards."""

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image
from sources import Encoders, contents, folder_of, preparation, prepared, rows, tar_of
from torch import Tensor

from tmatch.app.cli import main
from tmatch.data.crop import Crop
from tmatch.data.shards import ShardSet, write_shard
from tmatch.prepare import Preparation


def test_killed_and_restarted_it_writes_the_same_bytes(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", [*rows(22), ("bad.png", b"no image", "a circle")])
    manifest = prepared(source, tmp_path / "whole", encoders)
    assert (manifest.samples, manifest.skipped, manifest.captions, manifest.captions_cut) == (22, 1, 26, 4)
    for last in (0, 3, 1, 4):
        again, calls = preparation(source, tmp_path / "killed", encoders), []

        def until(*given: object, again: Preparation = again, calls: list[int] = calls, last: int = last) -> object:
            calls.append(1)
            if len(calls) > last:
                raise KeyboardInterrupt
            return Preparation._latents(again, *given)

        again._latents = until
        with pytest.raises(KeyboardInterrupt):
            again.run()
    prepared(source, tmp_path / "killed", encoders)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_chunk_that_is_being_written_is_completed_on_interrupt(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, batches = folder_of(tmp_path / "images", rows(12)), itertools.count()
    work, begun, ended = preparation(source, tmp_path / "out", encoders, "centre"), threading.Event(), threading.Event()

    def slowly(path: Path, tensors: dict[str, Tensor]) -> str:
        begun.set()
        assert ended.wait(60)
        return write_shard(path, tensors)

    def interrupted(images: Tensor, own: Callable[[Tensor], Tensor] = work._latents) -> Tensor:
        if next(batches) < 2:  # of the first chunk
            return own(images)
        assert begun.wait(60)
        ended.set()
        raise KeyboardInterrupt

    monkeypatch.setattr("tmatch.prepare.run.write_shard", slowly)
    work._latents = interrupted
    with pytest.raises(KeyboardInterrupt):
        work.run()
    assert sorted(contents(tmp_path / "out")) == ["000000-16x16.safetensors", "chunks/000000.json", "settings.json"]


def test_a_failed_write_stops_the_run_and_a_rerun_resumes(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder_of(tmp_path / "images", rows(12))

    def full(path: Path, tensors: dict[str, Tensor]) -> str:
        if path.name.startswith("000001"):
            raise OSError("disk full")
        return write_shard(path, tensors)

    with monkeypatch.context() as patch:
        patch.setattr("tmatch.prepare.run.write_shard", full)
        with pytest.raises(OSError, match="disk full"):
            preparation(source, tmp_path / "out", encoders).run()
    assert [file.name for file in (tmp_path / "out" / "chunks").glob("*.json")] == ["000000.json"]
    for out in ("out", "new"):
        prepared(source, tmp_path / out, encoders)
    assert contents(tmp_path / "out") == contents(tmp_path / "new")


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 2, 1)])
def test_processes_share_the_work_and_the_last_writes_the_manifest(
    order: tuple[int, ...], tmp_path: Path, encoders: Encoders
) -> None:
    source = folder_of(tmp_path / "images", rows(14))
    prepared(source, tmp_path / "one", encoders)
    results = [preparation(source, tmp_path / "three", encoders).run(rank=rank, world=3) for rank in order]
    assert [result is None for result in results] == [True, True, False]
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


def test_processes_that_finish_at_the_same_time_agree(tmp_path: Path, encoders: Encoders) -> None:
    """They share a tokenizer here, which is not thread-safe, so only the end of the run is concurrent."""
    source, out = folder_of(tmp_path / "images", rows(14)), tmp_path / "out"
    prepared(source, out, encoders)
    before = contents(out)
    (out / "manifest.json").unlink()
    works = [preparation(source, out, encoders) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert all(run.result() is not None for run in [pool.submit(work.run) for work in works])
    assert contents(out) == before
    assert preparation(source, out, encoders).run(rank=1, world=2) is None, "one process reports a complete set"


def test_every_layout_gives_the_same_samples(tmp_path: Path, encoders: Encoders) -> None:
    from datasets import Dataset, Features, List, Value
    from datasets import Image as ImageFeature

    images = rows(9)
    folder_of(tmp_path / "folder", images)
    parts = [
        ((name, png), (name.replace("png", "json"), json.dumps({"text": text}).encode())) for name, png, text in images
    ]
    tar_of(tmp_path / "images.tar", [member for pair in parts for member in pair])
    table = Dataset.from_dict(
        {
            "image": [{"bytes": content, "path": None} for _, content, _ in images],
            "text": [text if isinstance(text, list) else [text] for _, _, text in images],
        },
        features=Features({"image": ImageFeature(), "text": List(Value("string"))}),
    )
    table.to_parquet(tmp_path / "images.parquet")
    table.save_to_disk(tmp_path / "saved")
    expected: dict[str, bytes] = {}
    for name in ("folder", "images.tar", "images.parquet", "saved"):
        prepared(tmp_path / name, tmp_path / f"out-{name}", encoders)
        shards = {k: v for k, v in contents(tmp_path / f"out-{name}").items() if k.endswith(".safetensors")}
        expected = expected or shards
        assert shards == expected
    table.map(lambda row: {"text": ["another"] * len(row["text"])}).to_parquet(tmp_path / "images.parquet")
    with pytest.raises(ValueError, match="contains shards with another source"):
        preparation(tmp_path / "images.parquet", tmp_path / "out-images.parquet", encoders).run()


def test_shards_contain_what_the_encoders_compute(tmp_path: Path, encoders: Encoders) -> None:
    autoencoder, text = encoders
    work = preparation(folder_of(tmp_path / "images", rows(7)), tmp_path / "out", encoders)
    work.run()
    shards = ShardSet(tmp_path / "out")
    seen = []
    for number, shard in enumerate(shards.manifest.shards):
        samples = shards.read(number)
        assert samples.latents.shape[2:] == shard.size
        for k, row in enumerate(samples.rows.tolist()):
            one = work.image(row)
            torch.testing.assert_close(samples.latents[k], autoencoder.encode(one.pixels[None] / 255)[0])
            for turn in range(3):
                expected = text([one.row.captions[turn % len(one.row.captions)]])
                torch.testing.assert_close(samples.condition(k, turn), expected.tokens[0])
            seen.append(row)
    assert sorted(seen) == list(range(7))
    torch.testing.assert_close(shards.null(), text([text.null]).tokens[0])


@pytest.mark.parametrize(("size", "multiple", "ratio"), [(256, 16, 2.0), (64, 16, 2.0), (96, 8, 3.0)])
def test_buckets_have_about_the_same_area(size: int, multiple: int, ratio: float) -> None:
    crop = Crop(kind="buckets", size=size, multiple=multiple, ratio=ratio)
    assert (size, size) in crop.sizes
    assert {(w, h) for h, w in crop.sizes} == set(crop.sizes)
    for h, w in crop.sizes:
        assert h % multiple == w % multiple == 0
        assert size**2 - max(h, w) * multiple < h * w <= size**2
        assert max(h / w, w / h) <= ratio
        assert crop.choose(Image.new("1", (3 * w, 3 * h))) == (h, w)


def test_the_next_chunk_is_read_and_the_previous_one_written_while_one_is_encoded(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder_of(tmp_path / "images", rows(60))
    work = preparation(source, tmp_path / "out", encoders, "centre", chunk=20)
    read, encoding, chunks = [threading.Event() for _ in range(60)], threading.Event(), iter(range(3))
    own, conditions = work.image, work.conditions.samples

    def image(row: int) -> object:
        read[row].set()
        return own(row)

    def encode(*given: object) -> object:
        chunk = next(chunks)
        assert chunk == 2 or read[20 * chunk + 35].wait(60), "images are read while captions are encoded"
        if chunk == 1:
            encoding.set()
        return conditions(*given)

    def write(path: Path, tensors: dict[str, Tensor]) -> str:
        assert encoding.wait(60), "the next chunk is encoded while one is written"
        return write_shard(path, tensors)

    work.image, work.conditions.samples = image, encode
    monkeypatch.setattr("tmatch.prepare.run.write_shard", write)
    work.run(workers=2)


def test_few_images_are_held_as_pixels(tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmatch.prepare.run.AHEAD", 3 * 16**2 * 7 + 5)
    work = preparation(folder_of(tmp_path / "images", rows(30)), tmp_path / "out", encoders, "centre", chunk=20)
    read, encode, held, most = work.image, work._latents, 0, 0

    def image(row: int) -> object:
        nonlocal held, most
        held += 1
        most = max(most, held)
        return read(row)

    def latents(images: Tensor) -> Tensor:
        nonlocal held
        held -= len(images)
        return encode(images)

    work.image, work._latents = image, latents
    work.run(workers=1)
    assert most <= 7 + work.settings.batch_size


def test_the_command_prepares_and_rejects_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoders: Encoders
) -> None:
    source = folder_of(tmp_path / "images", [*rows(5), ("bad.png", b"", "a")])
    command = ["prepare", str(source), "--out", str(tmp_path / "out"), "--size", "16", "--multiple", "4"]
    own = ["--autoencoder", encoders[0].name, "--text", encoders[1].name]
    main([*command, *own, "--text-precision", "bfloat16"])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"samples": 5, "captions": 6, "captions_cut": 0, "skipped": 1, "shards": 1}
    assert "skipped.jsonl" in printed.err
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert (settings["autoencoder"]["precision"], settings["text"]["precision"]) == ("float32", "bfloat16")
    for change in (["--size", "18"], ["--chunk", "0"], ["--ratio", "nan"], ["--autoencoder", str(tmp_path)]):
        with pytest.raises(SystemExit) as stopped:
            main([*command, *own, *change])
        assert stopped.value.code == 2
