"""Where images and captions are found, and what is said where they are not."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sources import Encoders, contents, folder_of, image, pairs_of, preparation, rows, table, tar_of

from tmatch.data.sources import naming, open_source
from tmatch.data.sources.source import Unusable
from tmatch.prepare import Preparation


def test_names_of_tables_are_no_patterns(tmp_path: Path) -> None:
    table(tmp_path / "t?[a]" / "part1.parquet", range(3))
    table(tmp_path / "t?[a]" / "part[1].parquet", range(3, 7))
    table(tmp_path / "txa" / "part1.parquet", range(7, 9))
    source = open_source(str(tmp_path / "t?[a]"))
    assert sorted(source.read(k).captions[0] for k in range(len(source))) == [f"a {k}" for k in range(7)]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", range(3))
    (tmp_path / "b.parquet").write_bytes(b"PAR1?PAR1")
    with pytest.raises(ValueError, match=r"b\.parquet is no parquet file, or a damaged one"):
        open_source(str(tmp_path))


def captions(folder: Path, split: str = "train") -> list[str]:
    source = open_source(str(folder), split=split)
    return [source.read(k).captions[0] for k in range(len(source))]


def test_tables_whose_names_begin_with_splits_are_those_of_one(tmp_path: Path) -> None:
    for k, name in enumerate(("train-0", "train-1", "test-0", "val")):
        table(tmp_path / "some" / f"{name}.parquet", range(k, k + 1))
    assert captions(tmp_path / "some") == ["a 0", "a 1"]
    assert captions(tmp_path / "some", "test") == ["a 2"]
    assert captions(tmp_path / "some" / "test-0.parquet") == ["a 2"], "a file that is given is meant"
    with pytest.raises(ValueError, match=r"no parquet file whose name begins with validation, .* test and train and "):
        open_source(str(tmp_path / "some"), split="validation")
    table(tmp_path / "some" / "testimony.parquet", range(1))
    with pytest.raises(ValueError, match=r"files of splits, and testimony\.parquet, which is of none: take that out"):
        open_source(str(tmp_path / "some"))


def test_a_split_of_what_has_none_is_refused(tmp_path: Path) -> None:
    table(tmp_path / "table" / "a.parquet", range(1))
    table(tmp_path / "table" / "training.parquet", range(1, 2))
    assert captions(tmp_path / "table") == ["a 0", "a 1"]
    tar_of(tmp_path / "some.tar", [("a.png", image(0)), ("a.txt", b"a")])
    for local in ("table", "some.tar", str(folder_of(tmp_path / "listed", rows(1))), str(pairs_of(tmp_path / "p", 1))):
        with pytest.raises(ValueError, match=r"has no splits to choose one by --split: leave that out"):
            open_source(str(tmp_path / local), split="test")


def test_tables_may_have_columns_of_their_own_and_no_rows(tmp_path: Path) -> None:
    from datasets import Dataset

    table(tmp_path / "a.parquet", range(2))
    table(tmp_path / "b.parquet", range(0))
    more = {"image": [image(2)], "text": ["a 2"], "url": ["u"]}
    Dataset.from_dict(more).to_parquet(tmp_path / "c.parquet")
    source = open_source(str(tmp_path))
    assert [source.read(k).captions for k in range(len(source))] == [("a 0",), ("a 1",), ("a 2",)]
    with pytest.raises(ValueError, match=r"a\.parquet has no column 'url'; name one of image, text by --image-column"):
        open_source(str(tmp_path), text="url")
    with pytest.raises(ValueError, match=r"b\.parquet lists no images"):
        open_source(str(tmp_path / "b.parquet"))


def test_a_table_is_copied_without_its_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    more = {"image": [image(2)], "text": ["a 2"], "url": ["u"]}
    Dataset.from_dict(more).to_parquet(tmp_path / "a.parquet")
    made = []
    monkeypatch.setattr(naming, "TableSource", lambda name, table, *columns: made.append(table))
    open_source(str(tmp_path))
    assert made[0].column_names == ["image", "text"]


def test_kinds_that_lie_together_are_not_chosen_from(tmp_path: Path) -> None:
    tar_of(tmp_path / "some.tar", [("a.png", image(0)), ("a.txt", b"a")])
    (tmp_path / "b.png").write_bytes(image(1))
    (tmp_path / "b.txt").write_text("a")
    with pytest.raises(ValueError, match=r"holds some\.tar and b\.png: give a folder of one kind, or a file"):
        open_source(str(tmp_path))
    assert len(open_source(str(tmp_path / "some.tar"))) == 1


def test_tables_that_lie_deeper_are_pointed_at(tmp_path: Path) -> None:
    table(tmp_path / "data" / "a.parquet", range(1))
    with pytest.raises(ValueError, match=r"holds no images: .*/data has some"):
        open_source(str(tmp_path))


def test_captions_may_have_another_name_in_a_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", rows(2))
    plain = open_source(str(folder))
    (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "000.png", "caption": "a circle"}) + "\n")
    source = open_source(str(folder), text="caption")
    assert source.read(0).captions == ("a circle",)
    with pytest.raises(Unusable, match=r"000\.png has no text; --text-column names another"):
        open_source(str(folder)).read(0)
    assert len({plain.contents, source.contents, open_source(str(folder)).contents}) == 3


def test_texts_in_capitals_are_captions(tmp_path: Path) -> None:
    (tmp_path / "A.PNG").write_bytes(image(0))
    (tmp_path / "A.TXT").write_text("a circle")
    assert open_source(str(tmp_path)).read(0).captions == ("a circle",)


def test_a_link_out_of_a_folder_is_listed_as_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", rows(1))
    (tmp_path / "000.png").write_bytes(image(0))
    (folder / "000.png").unlink()
    (folder / "000.png").symlink_to(tmp_path / "000.png")
    with pytest.raises(Unusable, match=r"000\.png is a link to what is outside of the folder"):
        open_source(str(folder)).read(0)


def test_links_within_a_tar_lead_to_what_was_before_them(tmp_path: Path) -> None:
    members: list[tuple[str, bytes | str]] = [("./x/a.png", image(0)), ("./x/a.txt", b"a circle")]
    members += [("b.png", "x/a.png"), ("b.txt", "x/a.txt"), ("x/c.png", "~a.png"), ("x/c.txt", "~./a.txt")]
    members += [("d.png", "gone.png"), ("d.txt", "~x/a.txt"), ("e.photo.png", image(1)), ("e.txt", b"a")]
    source = open_source(tar_of(tmp_path / "some.tar", members))
    assert [source.key(k) for k in range(len(source))] == [f"some.tar/{key}" for key in ("./x/a", "b", "x/c", "d", "e")]
    for k in range(3):
        read = source.read(k)
        assert (read.image, read.captions) == (image(0), ("a circle",))
    with pytest.raises(Unusable, match="a link to what is not in the tar before it"):
        source.read(3)
    with pytest.raises(Unusable, match=r"it has no image, only \.photo\.png and \.txt"):
        source.read(4)


def test_a_column_of_a_tar_is_read_even_beside_a_text(tmp_path: Path) -> None:
    both = [("a.png", image(0)), ("a.txt", b"old"), ("a.json", b'{"text": "older", "new": "a circle"}')]
    name = tar_of(tmp_path / "some.tar", [*both, ("b.png", image(1)), ("b.txt", b"old"), ("b.json", b"{}")])
    assert open_source(name).read(0).captions == ("old",)
    source = open_source(name, text="new")
    assert source.read(0).captions == ("a circle",)
    with pytest.raises(Unusable, match=r"its \.json has no 'new'; --text-column names another"):
        source.read(1)
    alone = tar_of(tmp_path / "alone.tar", [("a.png", image(0)), ("a.txt", b"old")])
    with pytest.raises(Unusable, match=r"it has no \.json with a 'new', the --text-column"):
        open_source(alone, text="new").read(0)


def test_a_tar_with_other_captions_is_another_source(tmp_path: Path) -> None:
    first, second = (
        open_source(tar_of(tmp_path / f"{word}.tar", [("a.png", image(0)), ("a.txt", f"a {word} circle".encode())]))
        for word in ("red", "two")
    )
    assert list(first.rows) == list(second.rows)
    assert first.contents != second.contents


def test_few_images_are_held_as_pixels(tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmatch.prepare.run.AHEAD", 3 * 16**2 * 7 + 5)
    source = str(folder_of(tmp_path / "images", rows(60)))
    work = preparation(source, tmp_path / "out", encoders, "centre", chunk=40)
    read, encode, locked, most = work.image, work._latents, 0, 0

    def counted(row: int) -> object:
        nonlocal locked, most
        locked += 1
        most = max(most, locked)
        return read(row)

    def taken(images: object) -> object:
        nonlocal locked
        locked -= len(images)
        return encode(images)

    work.image, work._latents = counted, taken
    work.run(workers=1)
    assert most <= 7 + work.settings.batch
    preparation(source, tmp_path / "again", encoders, "centre", chunk=40).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "again")


def test_chunks_of_other_settings_are_made_again(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    preparation(source, tmp_path / "out", encoders, "centre").run()
    (tmp_path / "out" / "settings.json").unlink()
    preparation(source, tmp_path / "out", encoders, "buckets").run()
    preparation(source, tmp_path / "other", encoders, "buckets").run()
    manifests = [json.loads((tmp_path / out / "manifest.json").read_text()) for out in ("out", "other")]
    assert manifests[0] == manifests[1]


def test_a_chunk_that_another_process_makes_again_meanwhile_is_not_waited_for(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmatch.prepare.run.TIMEOUT", 2)
    source = folder_of(tmp_path / "images", rows(9))
    good = (source / "005.png").read_bytes()
    (source / "005.png").unlink()
    preparation(str(source), tmp_path / "out", encoders).run()
    (source / "005.png").write_bytes(good)
    first, read = preparation(str(source), tmp_path / "out", encoders), Preparation.image

    def meanwhile(row: int) -> object:
        first.image = lambda row: read(first, row)
        preparation(str(source), tmp_path / "out", encoders).run(rank=1, world=2)
        return read(first, row)

    first.image = meanwhile
    manifest = first.run(rank=0, world=2)
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (9, 0)


def test_a_process_that_is_slow_is_waited_for_and_one_that_has_stopped_is_not(
    tmp_path: Path, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmatch.prepare.run.TIMEOUT", 2)
    source = str(folder_of(tmp_path / "images", rows(30)))
    other = preparation(source, tmp_path / "out", encoders, "centre", chunk=15)
    encode = other._latents

    def slowly(images: object) -> object:
        time.sleep(0.6)
        return encode(images)

    other._latents = slowly
    with ThreadPoolExecutor() as pool:
        others = pool.submit(other.run, rank=1, world=2)
        manifest = preparation(source, tmp_path / "out", encoders, "centre", chunk=15).run(rank=0, world=2)
        others.result()
    assert manifest is not None
    assert manifest.samples == 30
    with pytest.raises(ValueError, match=r"1 of 2 chunks are not there, and nothing was encoded .* goes on"):
        preparation(source, tmp_path / "alone", encoders, "centre", chunk=15).run(rank=0, world=2)
