"""From captioned images to shards."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from sources import Encoders, contents, folder_of, preparation, rows

from tmatch.app.cli import main
from tmatch.data.crop import Crop
from tmatch.data.shards import ShardSet
from tmatch.prepare import Preparation


def test_killed_and_started_again_it_writes_the_same_bytes(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", [*rows(22), ("bad.png", b"no image", "a circle")]))
    manifest = preparation(source, tmp_path / "whole", encoders).run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped, manifest.captions, manifest.captions_cut) == (22, 1, 26, 4)
    expected = contents(tmp_path / "whole")
    for fixed_time in range(0, 12, 3):
        again, calls = preparation(source, tmp_path / "killed", encoders), []

        def until(
            *arguments: object, again: Preparation = again, calls: list[int] = calls, last: int = fixed_time
        ) -> object:
            calls.append(1)
            if len(calls) > last % 5:
                raise KeyboardInterrupt
            return Preparation._latents(again, *arguments)

        again._latents = until
        with pytest.raises(KeyboardInterrupt):
            again.run()
    preparation(source, tmp_path / "killed", encoders).run()
    assert contents(tmp_path / "killed") == expected


def test_processes_that_share_the_work_write_the_same_bytes(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", rows(22)))
    preparation(source, tmp_path / "one", encoders).run()
    for rank in (2, 1, 0):
        preparation(source, tmp_path / "three", encoders).run(rank=rank, world=3)
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


def test_a_process_that_is_gone_is_not_waited_for(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    monkeypatch.setattr("tmatch.prepare.run.PATIENCE", 0)
    with pytest.raises(ValueError, match="1 of 3 chunks are not there"):
        preparation(source, tmp_path / "shards", encoders).run(rank=0, world=2)
    assert preparation(source, tmp_path / "shards", encoders).run() is not None


def test_a_source_without_a_single_good_row_is_refused(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", [("bad.png", b"no image", "a circle")]))
    with pytest.raises(ValueError, match=r"No row of .* can be used; .*skipped.jsonl says why"):
        preparation(source, tmp_path / "shards", encoders).run()
    assert "bad.png" in (tmp_path / "shards" / "skipped.jsonl").read_text()


def test_every_kind_of_source_gives_the_same_samples(tmp_path: Path, encoders: Encoders) -> None:
    from datasets import Dataset, Features, List, Value
    from datasets import Image as ImageFeature

    images = rows(9)
    folder_of(tmp_path / "folder", images)
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        for name, content, text in images:
            for suffix, part in ((".png", content), (".json", json.dumps({"text": text}).encode())):
                member = tarfile.TarInfo(name.removesuffix(".png") + suffix)
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
    table = Dataset.from_dict(
        {
            "image": [{"bytes": content, "path": None} for _, content, _ in images],
            "text": [text if isinstance(text, list) else [text] for _, _, text in images],
        },
        features=Features({"image": ImageFeature(), "text": List(Value("string"))}),
    )
    table.to_parquet(tmp_path / "images.parquet")
    table.save_to_disk(tmp_path / "saved")
    shards = {}
    for name in ("folder", "images.tar", "images.parquet", "saved"):
        preparation(str(tmp_path / name), tmp_path / f"out-{name}", encoders).run()
        shards[name] = {k: v for k, v in contents(tmp_path / f"out-{name}").items() if k.endswith(".safetensors")}
        assert shards[name] == shards["folder"]
    table.map(lambda row: {"text": ["another"] * len(row["text"])}).to_parquet(tmp_path / "images.parquet")
    with pytest.raises(ValueError, match="holds shards with another contents"):
        preparation(str(tmp_path / "images.parquet"), tmp_path / "out-images.parquet", encoders).run()


def test_a_folder_with_a_text_beside_each_image(tmp_path: Path, encoders: Encoders) -> None:
    images = [(name, content, text) for name, content, text in rows(9) if isinstance(text, str)]
    folder_of(tmp_path / "listed", images)
    (paired := tmp_path / "paired").mkdir()
    (paired / "more").mkdir()
    for name, content, text in images:
        (paired / name).write_bytes(content)
        (paired / name).with_suffix(".txt").write_text(f"{text}\n")
    preparation(str(tmp_path / "listed"), tmp_path / "one", encoders).run()
    preparation(str(paired), tmp_path / "other", encoders).run()
    listed, found = (
        {k: v for k, v in contents(tmp_path / out).items() if k.endswith(".safetensors")} for out in ("one", "other")
    )
    assert listed == found
    (paired / "more" / "alone.png").write_bytes(images[0][1])
    (paired / ".thumbs").mkdir()
    (paired / ".thumbs" / "000.png").write_bytes(b"what a system leaves")
    for name, content in (("kind.xcf", b"?"), ("kind.txt", b"a circle"), ("two.png", b"?"), ("two.jpg", b"?")):
        (paired / name).write_bytes(content)
    with pytest.raises(ValueError, match="holds shards with another contents"):
        preparation(str(paired), tmp_path / "other", encoders).run()
    manifest = preparation(str(paired), tmp_path / "again", encoders).run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (len(images), 3)
    said = (tmp_path / "again" / "skipped.jsonl").read_text()
    for reason in ("more/alone.txt cannot be read: No such file", "has no image", "two.jpg and two.png: leave one"):
        assert reason in said
    for text in paired.rglob("*.txt"):
        text.unlink()
    with pytest.raises(ValueError, match=r"images without captions: write a metadata.jsonl, or .* a .txt"):
        preparation(str(paired), tmp_path / "none", encoders)


def test_what_is_read_back_is_what_the_encoders_say(tmp_path: Path, encoders: Encoders) -> None:
    autoencoder, text = encoders
    work = preparation(str(folder_of(tmp_path / "images", rows(7))), tmp_path / "out", encoders)
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
                expected = text([one.captions[turn % len(one.captions)]])
                torch.testing.assert_close(samples.caption(k, turn), expected.tokens[0])
            seen.append(row)
    assert sorted(seen) == list(range(7))
    torch.testing.assert_close(shards.null(), text([text.null]).tokens[0])


@pytest.mark.parametrize(("size", "multiple", "ratio"), [(256, 16, 2.0), (64, 16, 2.0), (96, 8, 3.0)])
def test_buckets_waste_little(size: int, multiple: int, ratio: float) -> None:
    crop = Crop(kind="buckets", size=size, multiple=multiple, ratio=ratio)
    assert (size, size) in crop.sizes
    assert {(w, h) for h, w in crop.sizes} == set(crop.sizes)
    for h, w in crop.sizes:
        assert h % multiple == w % multiple == 0
        assert size**2 - max(h, w) * multiple < h * w <= size**2
        assert max(h / w, w / h) <= ratio
        assert crop.choose(Image.new("1", (3 * w, 3 * h))) == (h, w)


def test_the_command_prepares_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoders: Encoders
) -> None:
    source = folder_of(tmp_path / "images", [*rows(5), ("bad.png", b"", "a")])
    command = ["prepare", str(source), "--out", str(tmp_path / "out"), "--size", "16", "--multiple", "4"]
    own = ["--autoencoder", encoders[0].name, "--text", encoders[1].name]
    main([*command, *own])
    said = capsys.readouterr()
    assert json.loads(said.out) == {"samples": 5, "captions": 6, "captions_cut": 0, "skipped": 1, "shards": 1}
    assert "1 row was skipped" in said.err
    for change, reason in (
        (["--size", "18"], "divides by 4"), (["--chunk", "0"], "--chunk"), (["--dtype", "float32"], "another dtype"),
        (["--ratio", "nan"], "ratio"), (["--autoencoder", str(tmp_path)], "The autoencoder"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stopped:
            main([*command, *own, *change])
        assert stopped.value.code == 2
        assert reason in capsys.readouterr().err
