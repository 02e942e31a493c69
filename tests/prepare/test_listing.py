"""How much of a source is listed, how, and at what price."""

import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from sources import pairs_of, tar_of

from tmatch.data.sources import open_source
from tmatch.data.sources.source import Unusable
from tmatch.data.sources.tars import _Member


def test_a_linked_folder_is_listed_and_not_followed(tmp_path: Path) -> None:
    folder, other = pairs_of(tmp_path / "images", 2), pairs_of(tmp_path / "other", 1)
    plain = open_source(str(folder))
    (folder / "within").mkdir()
    links = (folder / "linked.png", folder / "within" / "again", folder / ".hidden")
    for link in links:
        link.symlink_to(other, target_is_directory=True)
    source = open_source(str(folder))
    assert [source.key(k) for k in range(len(source))] == ["000000000", "000000001", "linked.png/", "within/again/"]
    for k in (2, 3):
        with pytest.raises(Unusable, match="a link to a folder, which is not followed"):
            source.read(k)
    for link in links:
        link.unlink()
    assert open_source(str(folder)).contents == plain.contents
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "all").symlink_to(other)
    with pytest.raises(ValueError, match=r"holds no images: .*links/all is a link to a folder, .*: give that folder"):
        open_source(str(tmp_path / "links"))


@pytest.mark.parametrize("kind", ["tar", "pairs"])
def test_a_row_takes_little_memory(kind: str, tmp_path: Path) -> None:
    """A hundred or two of bytes, for there may be ten millions in every process."""
    count = 1000
    if kind == "tar":
        members = [(f"{k:09}{suffix}", b"a") for k in range(count) for suffix in (".png", ".txt", ".json")]
        name = tar_of(tmp_path / "some.tar", list(members))
    else:
        name = str(pairs_of(tmp_path / "pairs", count))
    tracemalloc.start()
    source = open_source(name)
    locked = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert len(source) == count
    assert locked < 250


def test_what_takes_long_is_said_once_by_the_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(pairs_of(tmp_path / "pairs", 3))
    open_source(name)
    assert capsys.readouterr().err == "", "what is quick is not talked about"
    monkeypatch.setattr("tmatch.data.sources.source.SILENCE", -1)
    open_source(name)
    assert f"tmatch: {name} is being listed: 2 images so far.\n" in capsys.readouterr().err
    open_source(tar_of(tmp_path / "some.tar", [("a.txt", b"a"), ("b.txt", b"b")]))
    assert "some.tar is being listed: 0 tars so far.\n" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    open_source(name)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_read_as_the_library_reads_them(kind: int, tmp_path: Path) -> None:
    """Long names, letters, folders, large numbers and odd sizes, in each of its formats."""
    names = ["a.png", "d" * 90 + "/" + "e" * 90 + ".png", "ü.txt", "folder/", "f.txt"]
    names += ["g" * 150 + ".png"] * (kind != tarfile.USTAR_FORMAT)
    with tarfile.open(tmp_path / "some.tar", "w", format=kind) as tar:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            member.size, member.uid = 0 if name.endswith("/") else 511 * number, 8**7 - 1
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    found = []
    for way in (tarfile.TarInfo, _Member):
        with tarfile.open(tmp_path / "some.tar", tarinfo=way) as tar:
            found.append([(each.name, each.size, each.type, each.offset_data) for each in tar])
    assert found[0] == found[1]
    assert [name for name, *_ in found[1]] == [name.removesuffix("/") for name in names]
