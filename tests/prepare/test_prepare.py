"""From captioned pictures to shards."""

import io
import json
import random
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny import save_kl_autoencoder, save_text_encoder

from tmatch.app.cli import main
from tmatch.prepare import Crop, Preparation, Settings, ShardSet, open_source
from tmatch.pretrained import PretrainedAutoencoder, PretrainedText, load_autoencoder, load_text_encoder

Encoders = tuple[PretrainedAutoencoder, PretrainedText]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Encoders:
    folder = tmp_path_factory.mktemp("encoders")
    return (
        load_autoencoder(str(save_kl_autoencoder(folder / "kl"))),
        load_text_encoder(str(save_text_encoder(folder / "text")), longest=8),
    )


def encoded(image: Image.Image, kind: str = "PNG", **how: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def picture(seed: int, size: tuple[int, int] = (20, 20)) -> bytes:
    return encoded(Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1])))


CAPTIONS = ["a red circle", "two blue square", ["a square", "a blue square"], "circle of a", "a a a a a a a a a a red"]


def rows(count: int) -> list[tuple[str, bytes, object]]:
    sizes = [(20, 20), (32, 18), (18, 32)]
    return [(f"{k:03}.png", picture(k, sizes[k % 3]), CAPTIONS[k % 5]) for k in range(count)]


def folder_of(folder: Path, pictures: list[tuple[str, bytes, object]]) -> Path:
    folder.mkdir(parents=True)
    for name, content, _ in pictures:
        (folder / name).write_bytes(content)
    lines = [json.dumps({"file_name": name, "text": text}) for name, _, text in pictures]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def preparation(source: str, out: Path, encoders: Encoders, kind: str = "buckets", chunk: int = 4) -> Preparation:
    autoencoder, text = encoders
    pictures = open_source(source)
    settings = Settings.model_validate(
        {
            "source": source, "rows": len(pictures), "crop": Crop(kind=kind, size=16, multiple=4), "dtype": "float32",
            "autoencoder": autoencoder.identity(), "text": text.identity(), "chunk": chunk, "batch": 3, "licence": "",
        }
    )  # fmt: skip
    return Preparation(pictures, out, settings, autoencoder, text)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_killed_and_started_again_it_writes_the_same_bytes(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "pictures", [*rows(22), ("bad.png", b"no picture", "a circle")]))
    manifest = preparation(source, tmp_path / "whole", encoders).run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped, manifest.captions, manifest.captions_cut) == (22, 1, 26, 4)
    expected = contents(tmp_path / "whole")
    for moment in range(0, 12, 3):
        again, calls = preparation(source, tmp_path / "killed", encoders), []

        def until(
            *arguments: object, again: Preparation = again, calls: list[int] = calls, last: int = moment
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
    source = str(folder_of(tmp_path / "pictures", rows(22)))
    preparation(source, tmp_path / "one", encoders).run()
    for rank in (2, 1, 0):
        preparation(source, tmp_path / "three", encoders).run(rank=rank, world=3)
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


def test_a_process_that_is_gone_is_not_waited_for(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(folder_of(tmp_path / "pictures", rows(9)))
    monkeypatch.setattr("tmatch.prepare.run.PATIENCE", 0)
    with pytest.raises(ValueError, match="1 of 3 chunks are not there"):
        preparation(source, tmp_path / "shards", encoders).run(rank=0, world=2)
    assert preparation(source, tmp_path / "shards", encoders).run() is not None


def test_a_source_without_a_single_good_row_is_refused(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "pictures", [("bad.png", b"no picture", "a circle")]))
    with pytest.raises(ValueError, match=r"No row of .* can be used; .*skipped.jsonl says why"):
        preparation(source, tmp_path / "shards", encoders).run()
    assert "bad.png" in (tmp_path / "shards" / "skipped.jsonl").read_text()


def test_every_kind_of_source_gives_the_same_samples(tmp_path: Path, encoders: Encoders) -> None:
    from datasets import Dataset, Features, List, Value
    from datasets import Image as ImageFeature

    pictures = rows(9)
    folder_of(tmp_path / "folder", pictures)
    with tarfile.open(tmp_path / "pictures.tar", "w") as tar:
        for name, content, text in pictures:
            for suffix, part in ((".png", content), (".json", json.dumps({"text": text}).encode())):
                member = tarfile.TarInfo(name.removesuffix(".png") + suffix)
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
    table = Dataset.from_dict(
        {
            "image": [{"bytes": content, "path": None} for _, content, _ in pictures],
            "text": [text if isinstance(text, list) else [text] for _, _, text in pictures],
        },
        features=Features({"image": ImageFeature(), "text": List(Value("string"))}),
    )
    table.to_parquet(tmp_path / "pictures.parquet")
    table.save_to_disk(tmp_path / "saved")
    shards = {}
    for name in ("folder", "pictures.tar", "pictures.parquet", "saved"):
        preparation(str(tmp_path / name), tmp_path / f"out-{name}", encoders).run()
        shards[name] = {k: v for k, v in contents(tmp_path / f"out-{name}").items() if k.endswith(".safetensors")}
        assert shards[name] == shards["folder"]


def test_what_is_read_back_is_what_the_encoders_say(tmp_path: Path, encoders: Encoders) -> None:
    autoencoder, text = encoders
    work = preparation(str(folder_of(tmp_path / "pictures", rows(7))), tmp_path / "out", encoders)
    work.run()
    shards = ShardSet(tmp_path / "out")
    seen = []
    for number, shard in enumerate(shards.manifest.shards):
        samples = shards.read(number)
        assert samples.latents.shape[2:] == shard.size
        for k, row in enumerate(samples.rows.tolist()):
            one = work.picture(row)
            torch.testing.assert_close(samples.latents[k], autoencoder.encode(one.pixels[None] / 255)[0])
            for turn in range(3):
                expected = text([one.captions[turn % len(one.captions)]])
                torch.testing.assert_close(samples.caption(k, turn), expected.tokens[0])
            seen.append(row)
    assert sorted(seen) == list(range(7))
    torch.testing.assert_close(shards.null(), text.null().tokens[0])


GOOD: dict[str, bytes] = {
    "cmyk.jpg": encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "JPEG"),
    "grey16.png": encoded(Image.new("I;16", (20, 20), 32896)),
    "animated.gif": encoded(
        Image.new("RGB", (20, 20), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (20, 20), "blue")]
    ),
    "mislabelled.jpg": picture(0),
    "transparent.png": encoded(Image.new("RGBA", (20, 20), (0, 0, 0, 0))),
    "palette.png": encoded(Image.new("P", (20, 20))),
}
BAD: dict[str, tuple[bytes, str]] = {
    "corrupt.png": (picture(1)[:100], "truncated"),
    "empty.png": (b"", "no picture"),
    "text.png": (b"not a picture", "no picture"),
    "dot.png": (picture(1, (1, 1)), "too small"),
    "huge.png": (encoded(Image.new("1", (20_000, 20_000)), compress_level=9), "exceeds limit"),
}


def test_odd_pictures_are_read_and_bad_ones_skipped_with_the_reason(tmp_path: Path, encoders: Encoders) -> None:
    pictures = [*((name, content, "a red circle") for name, content in GOOD.items())]
    pictures += [(name, content, "a red circle") for name, (content, _) in BAD.items()]
    pictures += [("a.png", picture(2), ""), ("b.png", picture(3), 7), ("c.png", picture(4), " \n")]
    folder = folder_of(tmp_path / "pictures", pictures)
    with (folder / "metadata.jsonl").open("ab") as file:
        file.write(b'{"file_name": "cmyk.jpg"}\n{"text": "a"}\nno json\n{"file_name": "cmyk.jpg", "text": "\xff"}\n')
        file.write(b'{"file_name": "../out.png", "text": "a"}\n{"file_name": "none.png", "text": "a"}\n[]\n')
    work = preparation(str(folder), tmp_path / "out", encoders, "centre")
    manifest = work.run()
    assert manifest is not None
    assert manifest.samples == len(GOOD)
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert manifest.skipped == len(skipped) == len(BAD) + 3 + 7
    reasons = [one["reason"] for one in skipped]
    expected = [reason for _, reason in BAD.values()]
    expected += ["empty", "not a text", "empty", "no text", "no file_name", "not JSON", "not UTF-8", "outside"]
    expected += ["No such file", "not a JSON object"]
    for reason, part in zip(reasons, expected, strict=True):
        assert part in reason
    pixels = {name: work.picture(k).pixels.float().mean((1, 2)) for k, name in enumerate(GOOD)}
    assert pixels["grey16.png"].tolist() == [128, 128, 128], "16 bits are scaled, not clipped"
    assert pixels["animated.gif"].argmax() == 0, "the first picture of an animation"
    assert pixels["transparent.png"].tolist() == [255, 255, 255]


def test_damaged_and_foreign_shards_are_refused(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "pictures", rows(4)))
    preparation(source, tmp_path / "out", encoders, "centre").run()
    shards = ShardSet(tmp_path / "out")
    file = tmp_path / "out" / shards.manifest.shards[0].file
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            ShardSet(tmp_path / "out").read(0)
    file.write_bytes(whole)
    shards.require(*(one.identity() for one in encoders))
    other = load_text_encoder(str(save_text_encoder(tmp_path / "other", seed=1)))
    with pytest.raises(ValueError, match="were made with the text encoder"):
        shards.require(text=other.identity())
    with pytest.raises(ValueError, match="holds shards with another text"):
        preparation(source, tmp_path / "out", (encoders[0], other), "centre").run()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="not a manifest of this version"):
        ShardSet(tmp_path / "out")
    with pytest.raises(ValueError, match="holds no finished shards"):
        ShardSet(tmp_path)


def test_a_truncated_tar_loses_only_its_last_row(tmp_path: Path, encoders: Encoders) -> None:
    with tarfile.open(tmp_path / "whole.tar", "w") as tar:
        for name, content, _ in rows(3):
            for suffix, part in ((".png", content), (".txt", b"a circle")):
                member = tarfile.TarInfo(name.removesuffix(".png") + suffix)
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
    with tarfile.open(tmp_path / "whole.tar") as tar:
        last = tar.getmembers()[-2]
    (tmp_path / "cut.tar").write_bytes((tmp_path / "whole.tar").read_bytes()[: last.offset_data + 100])
    manifest = preparation(str(tmp_path / "cut.tar"), tmp_path / "out", encoders, "centre").run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (2, 1)


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
    source = folder_of(tmp_path / "pictures", [*rows(5), ("bad.png", b"", "a")])
    command = ["prepare", str(source), "--out", str(tmp_path / "out"), "--size", "16", "--multiple", "4"]
    own = ["--autoencoder", encoders[0].name, "--text", encoders[1].name]
    main([*command, *own])
    said = capsys.readouterr()
    assert json.loads(said.out) == {"samples": 5, "captions": 6, "captions_cut": 0, "skipped": 1, "shards": 1}
    assert "1 rows were skipped" in said.err
    for change, reason in (
        (["--size", "18"], "divides by 4"), (["--chunk", "0"], "--chunk"), (["--dtype", "float32"], "another dtype"),
        (["--ratio", "nan"], "ratio"), (["--autoencoder", str(tmp_path)], "no autoencoder"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stopped:
            main([*command, *own, *change])
        assert stopped.value.code == 2
        assert reason in capsys.readouterr().err
