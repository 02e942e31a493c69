"""Reading captioned images: layouts, damaged rows, and what is rejected."""

import json
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image
from sources import Encoders, contents, encoded, folder_of, image, pairs_of, preparation, prepared, rows, table, tar_of

from tmatch.data.shards import ShardSet
from tmatch.data.sources import open_source
from tmatch.data.sources.source import Unusable

GOOD: dict[str, bytes] = {
    "cmyk.jpg": encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "JPEG"),
    "grey16.png": encoded(Image.new("I;16", (20, 20), 32896)),
    "animated.gif": encoded(
        Image.new("RGB", (20, 20), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (20, 20), "blue")]
    ),
    "mislabelled.jpg": image(0),
    "transparent.png": encoded(Image.new("RGBA", (20, 20), (0, 0, 0, 0))),
    "palette.png": encoded(Image.new("P", (20, 20))),
    "grey16.tif": encoded(Image.new("I;16B", (20, 20), 32896), "TIFF"),
}
BAD: dict[str, tuple[bytes, str]] = {
    "corrupt.png": (image(1)[:100], "truncated"),
    "empty.png": (b"", "unknown"),
    "text.png": (b"not an image", "unknown"),
    "dot.png": (image(1, (1, 1)), "too small"),
    "huge.png": (encoded(Image.new("1", (20_000, 20_000)), compress_level=1), "exceeds limit"),
    "real.tif": (encoded(Image.new("F", (20, 20), 0.5), "TIFF"), "floating-point"),
    "fine.tif": (encoded(Image.new("I", (20, 20), 70_000), "TIFF"), "exceed 16 bits"),
    "program.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n", "unknown"),
}


def test_unusual_images_are_read_and_bad_rows_skipped_with_a_reason(tmp_path: Path, encoders: Encoders) -> None:
    images = [*((name, content, "a red circle") for name, content in GOOD.items())]
    images += [(name, content, "a red circle") for name, (content, _) in BAD.items()]
    images += [("a.png", image(2), ""), ("b.png", image(3), 7), ("c.png", image(4), " \n")]
    folder = folder_of(tmp_path / "images", images)
    with (folder / "metadata.jsonl").open("ab") as file:
        file.write(b'{"file_name": "cmyk.jpg"}\n{"text": "a"}\nno json\n{"file_name": "cmyk.jpg", "text": "\xff"}\n')
        file.write(b'{"file_name": "../out.png", "text": "a"}\n{"file_name": "none.png", "text": "a"}\n[]\n')
        file.write(b'{"file_name": "cmyk.jpg", "text": "\\ud800"}\n{"file_name": "\\udcff.png", "text": "a"}\n')
        file.write(b'{"file_name": "pipe", "text": "a"}\n{"file_name": "\\u0000", "text": "a"}\n')
        file.write(b'{"file_name": "circle.png", "text": "a"}\n{"file_name": "out.png", "text": "a"}\n')
        file.write(b"[" * 100_000 + b"\n")
    os.mkfifo(folder / "pipe")
    (folder / "circle.png").symlink_to("circle.png")
    (folder / "out.png").symlink_to(tmp_path / "out.png")
    work = preparation(folder, tmp_path / "out", encoders, "centre")
    manifest = work.run()
    assert manifest is not None
    assert manifest.samples == len(GOOD)
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    expected = [reason for _, reason in BAD.values()]
    expected += ["empty", "not a string", "empty", "no 'text'", "no file_name", "invalid JSON", "not UTF-8", "outside"]
    expected += ["No such file", "not a JSON object", "surrogate", "udcff.png cannot be read", "not a regular", "null"]
    expected += ["Too many levels", "outside the folder", "invalid JSON"]
    assert manifest.skipped == len(skipped) == len(expected)
    for one, part in zip(skipped, expected, strict=True):
        assert part in one["reason"]
    pixels = {name: work.image(k).pixels.float().mean((1, 2)) for k, name in enumerate(GOOD)}
    for grey in ("grey16.png", "grey16.tif"):
        assert pixels[grey].tolist() == [128, 128, 128], "16 bits are scaled, not clipped"
    assert pixels["animated.gif"].argmax() == 0, "the first frame of an animation"
    assert pixels["transparent.png"].tolist() == [255, 255, 255]


def test_a_source_without_usable_rows_is_rejected(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", [("bad.png", b"no image", "a circle")])
    with pytest.raises(ValueError, match=r"No row of .* can be used; see .*skipped.jsonl"):
        preparation(source, tmp_path / "shards", encoders).run()
    assert "bad.png" in (tmp_path / "shards" / "skipped.jsonl").read_text()


def test_a_folder_with_a_text_file_per_image(tmp_path: Path, encoders: Encoders) -> None:
    images = [(name, content, text) for name, content, text in rows(9) if isinstance(text, str)]
    folder_of(tmp_path / "listed", images)
    (paired := tmp_path / "paired").mkdir()
    (paired / "more").mkdir()
    for name, content, text in images:
        (paired / name).write_bytes(content)
        (paired / name).with_suffix(".txt").write_text(f"{text}\n")
    prepared(tmp_path / "listed", tmp_path / "one", encoders)
    prepared(paired, tmp_path / "other", encoders)
    listed, found = (
        {k: v for k, v in contents(tmp_path / out).items() if k.endswith(".safetensors")} for out in ("one", "other")
    )
    assert listed == found
    (paired / "more" / "alone.png").write_bytes(images[0][1])
    (paired / ".thumbs").mkdir()
    (paired / ".thumbs" / "000.png").write_bytes(b"hidden")
    for name, content in (("kind.xcf", b"?"), ("kind.txt", b"a circle"), ("two.png", b"?"), ("two.jpg", b"?")):
        (paired / name).write_bytes(content)
    (paired / "A.PNG").write_bytes(images[0][1])
    (paired / "A.TXT").write_text("a circle")
    manifest = prepared(paired, tmp_path / "again", encoders)
    assert (manifest.samples, manifest.skipped) == (len(images) + 1, 3)
    report = (tmp_path / "again" / "skipped.jsonl").read_text()
    for reason in ("more/alone.txt cannot be read: No such file", "no image", "two.jpg and two.png"):
        assert reason in report
    for text in paired.rglob("*.[tT][xX][tT]"):
        text.unlink()
    assert not open_source(str(paired)).captioned


def test_a_truncated_tar_is_used_up_to_the_damage(tmp_path: Path, encoders: Encoders) -> None:
    members = [
        (name.replace("png", suffix), part)
        for name, png, _ in rows(3)
        for suffix, part in (("png", png), ("txt", b"a"))
    ]
    whole = Path(tar_of(tmp_path / "whole.tar", members)).read_bytes()
    with tarfile.open(tmp_path / "whole.tar") as tar:
        last = tar.getmembers()[-2]
    damaged = {
        "within": (whole[: last.offset_data + 100], 2, 2),  # the truncated image, and the rest
        "between": (whole[: last.offset], 2, 1),
        "flipped": (whole[: last.offset] + b"\xff" + whole[last.offset + 1 :], 2, 1),
        "hole": (whole[: last.offset] + bytes(512) + whole[last.offset + 512 :], 2, 1),
        "whole": (whole, 3, 0),
    }
    for name, (content, samples, skipped) in damaged.items():
        (tmp_path / f"{name}.tar").write_bytes(content)
        manifest = prepared(tmp_path / f"{name}.tar", tmp_path / name, encoders, kind="centre")
        assert (manifest.samples, manifest.skipped) == (samples, skipped), name
        report = (tmp_path / name / "skipped.jsonl").read_text()
        assert ("damaged from here on" in report) == (name != "whole")


def test_repeated_names_in_a_tar_are_separate_samples(tmp_path: Path, encoders: Encoders) -> None:
    names = ("a.png", "a.txt", "a.png", "a.txt", "b.png", "b.webp", "b.txt", "c.png", "c.png", "c.txt")
    members = [(name, b"a circle" if name.endswith("txt") else image(k)) for k, name in enumerate(names)]
    manifest = prepared(tar_of(tmp_path / "images.tar", members), tmp_path / "out", encoders)
    assert (manifest.samples, manifest.skipped) == (3, 2)
    report = (tmp_path / "out" / "skipped.jsonl").read_text()
    assert "more than one image: .png and .webp" in report
    assert '"key":"images.tar/c","reason":"no caption' in report, "the caption belongs to the adjacent image"
    shards = ShardSet(tmp_path / "out")
    latents = [latent for number in range(len(manifest.shards)) for latent in shards.read(number).latents]
    assert len({tuple(latent.flatten().tolist()) for latent in latents}) == 3


def test_members_of_a_tar_are_grouped_by_name_up_to_the_first_dot(tmp_path: Path) -> None:
    members = [("./x/a.png", image(0)), ("b.photo.png", image(1)), ("./x/a.txt", b"a circle"), ("b.txt", b"a")]
    source = open_source(tar_of(tmp_path / "some.tar", members))
    assert [source.key(k) for k in range(len(source))] == ["some.tar/./x/a", "some.tar/b"]
    read = source.read(0)
    assert (read.image, read.captions) == (image(0), ("a circle",))
    with pytest.raises(Unusable, match=r"no image, only \.photo\.png and \.txt"):
        source.read(1)


def test_the_text_column_selects_captions(tmp_path: Path) -> None:
    both = [("a.png", image(0)), ("a.txt", b"old"), ("a.json", b'{"text": "older", "new": "a circle"}')]
    name = tar_of(tmp_path / "some.tar", [*both, ("b.png", image(1)), ("b.txt", b"old"), ("b.json", b"{}")])
    assert open_source(name).read(0).captions == ("old",)
    source = open_source(name, text="new")
    assert source.read(0).captions == ("a circle",)
    with pytest.raises(Unusable, match=r"the \.json has no 'new'"):
        source.read(1)
    folder = folder_of(tmp_path / "images", rows(2))
    (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "000.png", "caption": "a circle"}) + "\n")
    source = open_source(str(folder), text="caption")
    assert source.read(0).captions == ("a circle",)
    with pytest.raises(Unusable, match=r"000\.png has no 'text'"):
        open_source(str(folder)).read(0)


def captions(folder: Path, split: str = "train") -> list[str]:
    source = open_source(str(folder), split=split)
    return [source.read(k).captions[0] for k in range(len(source))]


def test_parquet_files_may_be_split_by_name(tmp_path: Path) -> None:
    for k, name in enumerate(("train-0", "train-1", "test-0", "val")):
        table(tmp_path / "some" / f"{name}.parquet", range(k, k + 1))
    assert captions(tmp_path / "some") == ["a 0", "a 1"]
    assert captions(tmp_path / "some", "test") == ["a 2"]
    assert captions(tmp_path / "some" / "test-0.parquet") == ["a 2"], "a file given by name is used"
    with pytest.raises(ValueError, match=r"no split 'validation'; set --split to one of test, train, val"):
        open_source(str(tmp_path / "some"), split="validation")
    table(tmp_path / "some" / "testimony.parquet", range(1))
    with pytest.raises(ValueError, match=r"testimony\.parquet, which belongs to no split"):
        open_source(str(tmp_path / "some"))
    table(tmp_path / "table" / "a.parquet", range(1))
    table(tmp_path / "table" / "training.parquet", range(1, 2))
    assert captions(tmp_path / "table") == ["a 0", "a 1"]
    tar_of(tmp_path / "some.tar", [("a.png", image(0)), ("a.txt", b"a")])
    for local in ("table", "some.tar", str(folder_of(tmp_path / "listed", rows(1)))):
        with pytest.raises(ValueError, match=r"has no splits; remove --split"):
            open_source(str(tmp_path / local), split="test")


def test_parquet_files_may_have_patterns_in_their_names_other_columns_and_no_rows(tmp_path: Path) -> None:
    table(tmp_path / "t?[a]" / "part1.parquet", range(3))
    table(tmp_path / "t?[a]" / "part[1].parquet", range(3, 4), url=["u"])
    table(tmp_path / "t?[a]" / "empty.parquet", range(0))
    table(tmp_path / "txa" / "part1.parquet", range(7, 9))
    assert sorted(captions(tmp_path / "t?[a]")) == [f"a {k}" for k in range(4)]
    with pytest.raises(ValueError, match=r"part1\.parquet has no column 'url'; .* two of image, text"):
        open_source(str(tmp_path / "t?[a]"), text="url")
    with pytest.raises(ValueError, match=r"empty\.parquet contains no images"):
        open_source(str(tmp_path / "t?[a]" / "empty.parquet"))
    (tmp_path / "txa" / "b.parquet").write_bytes(b"PAR1?PAR1")
    with pytest.raises(ValueError, match=r"b\.parquet is not a valid parquet file"):
        open_source(str(tmp_path / "txa"))


def test_ambiguous_folders_are_rejected(tmp_path: Path) -> None:
    table(tmp_path / "data" / "a.parquet", range(1))
    with pytest.raises(ValueError, match=r"contains no images: .* Did you mean .*/data\?"):
        open_source(str(tmp_path))
    tar_of(tmp_path / "some.tar", [("a.png", image(0)), ("a.txt", b"a")])
    (tmp_path / "b.png").write_bytes(image(1))
    with pytest.raises(ValueError, match=r"mixes kinds of files \(some\.tar and b\.png\)"):
        open_source(str(tmp_path))
    assert len(open_source(str(tmp_path / "some.tar"))) == 1


def test_links_to_folders_are_listed_but_not_followed(tmp_path: Path) -> None:
    folder, other = pairs_of(tmp_path / "images", 2), pairs_of(tmp_path / "other", 1)
    (folder / "within").mkdir()
    for link in (folder / "linked.png", folder / "within" / "again", folder / ".hidden"):
        link.symlink_to(other, target_is_directory=True)
    source = open_source(str(folder))
    assert [source.key(k) for k in range(len(source))] == ["000000000", "000000001", "linked.png/", "within/again/"]
    for k in (2, 3):
        with pytest.raises(Unusable, match="links to folders are not followed"):
            source.read(k)


@pytest.mark.parametrize("kind", ["tar", "pairs"])
def test_a_row_takes_little_memory(kind: str, tmp_path: Path) -> None:
    """At most 250 bytes, since there may be ten million in every process."""
    count = 1000
    if kind == "tar":
        members = [(f"{k:09}{suffix}", b"a") for k in range(count) for suffix in (".png", ".txt", ".json")]
        name = tar_of(tmp_path / "some.tar", list(members))
    else:
        name = str(pairs_of(tmp_path / "pairs", count))
    tracemalloc.start()
    source = open_source(name)
    per_row = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert len(source) == count
    assert per_row < 250


def test_a_file_too_large_to_be_an_image_is_skipped(tmp_path: Path) -> None:
    """Also one that its tar file claims to be so large."""
    name = tar_of(tmp_path / "some.tar", [("a.png", image(0)), ("a.txt", b"a"), ("b.png", image(1)), ("b.txt", b"b")])
    with tarfile.open(name) as tar:
        last = tar.getmembers()[2]
    last.size = 2**45
    header, whole = last.tobuf(format=tarfile.GNU_FORMAT), Path(name).read_bytes()
    Path(name).write_bytes(whole[: last.offset] + header + whole[last.offset + len(header) :])
    source = open_source(name)
    assert source.read(0).captions == ("a",)
    with pytest.raises(Unusable, match="truncated here"):
        source.read(1)
    folder = folder_of(tmp_path / "images", [*rows(1), ("large.png", b"", "a circle"), ("text.png", b"", "a" * 10**7)])
    os.truncate(folder / "large.png", 2**40)
    for k, reason in ((1, "larger than"), (2, "longer than")):
        with pytest.raises(Unusable, match=reason):
            open_source(str(folder)).read(k)


def test_paths_in_a_table_stay_in_its_folder(tmp_path: Path) -> None:
    from datasets import Dataset

    (tmp_path / "secret.png").write_bytes(image(0))
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "own.png").write_bytes(image(1))
    os.mkfifo(tmp_path / "some" / "pipe.png")
    (tmp_path / "some" / "link.png").symlink_to(tmp_path / "secret.png")
    names = ["own.png", str(tmp_path / "some" / "own.png"), str(tmp_path / "secret.png"), "../secret.png", "link.png"]
    images = [{"bytes": None, "path": name} for name in [*names, "pipe.png", "/dev/zero", "\0"]]
    Dataset.from_dict({"image": images, "text": ["a"] * len(images)}).to_parquet(tmp_path / "some" / "a.parquet")
    source = open_source(str(tmp_path / "some" / "a.parquet"))
    assert [source.read(k).image for k in range(2)] == [image(1)] * 2
    for k in range(2, len(images)):
        with pytest.raises(ValueError, match=r"outside|regular|null"):
            source.read(k)


def test_tables_and_tars_are_regular_files(tmp_path: Path) -> None:
    for name in ("a.tar", "b.parquet"):
        os.mkfifo(tmp_path / name)
        with pytest.raises((ValueError, NotADirectoryError)):
            open_source(str(tmp_path / name))
    with pytest.raises(ValueError, match="contains no images"):
        open_source(str(tmp_path))
