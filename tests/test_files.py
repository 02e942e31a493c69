"""Files are written completely or not at all."""

import os
import stat
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from PIL import Image

from tmatch import files
from tmatch.data.images import save_image
from tmatch.train.monitor import Log


def test_weights_have_the_permissions_of_other_files(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "w.safetensors", {"w": torch.ones(1)})
    (tmp_path / "other").touch()
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_keeps_the_previous_file_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image.png"
    save_image(torch.ones(3, 2, 2), image)
    before = image.read_bytes()

    def full(draft: Path, *_: object, **__: object) -> None:
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", lambda _, *to, **how: full(*to, **how))
    monkeypatch.setattr(files, "save_file", lambda _, draft: full(draft))
    with pytest.raises(OSError, match="No space left"):
        save_image(torch.zeros(3, 2, 2), image)
    with pytest.raises(OSError, match=r"Cannot write .*image\.png .*free disk space"):
        files.write_tensors(image, {})
    assert image.read_bytes() == before
    assert list(tmp_path.iterdir()) == [image]


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_folder_is_written_completely_or_not_at_all(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "folder"
    if there:
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)

    def write(fail: bool) -> None:
        with files.atomic_folder(folder) as draft:
            (draft / "part").mkdir()
            (draft / "part" / "file").write_text("whole")
            if fail:
                raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"Cannot write .*new/folder .*No space left"):
        write(fail=True)
    assert files.is_free(folder)
    assert [found.name for found in folder.parent.iterdir()] == ["folder"] * there
    for left in (folder.with_name(".folder.writing"), *([folder / ".writing"] if there else [])):
        left.mkdir()
        (left / "half").touch()
    assert files.is_free(folder)
    write(fail=False)
    assert not files.is_free(folder)
    assert [found for found in folder.rglob("*") if found.is_file()] == [folder / "part" / "file"]
    assert Path.cwd().exists(), "an empty working directory is kept"


def test_forked_workers_do_not_keep_the_lock(tmp_path: Path) -> None:
    with files.locked(tmp_path):
        child = get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        with pytest.raises(ValueError, match="in use by another"), files.locked(tmp_path):
            pass
    try:
        with files.locked(tmp_path):
            pass
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("name", [".lock", "losses.jsonl"])
@pytest.mark.parametrize("exists", [True, False])
def test_links_are_not_written_through(exists: bool, name: str, tmp_path: Path) -> None:
    other, run = tmp_path / "other", tmp_path / "run"
    if exists:
        other.write_text("mine")
    run.mkdir()
    (run / name).symlink_to(other)
    write = Log(run / name).append if name == "losses.jsonl" else lambda _: files.locked(run).__enter__()
    with pytest.raises(ValueError, match=f"{name} is a link"):
        write(1)
    assert other.exists() == exists
    assert not exists or other.read_text() == "mine"


def test_drafts_that_are_links_change_nothing_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("mine")
    (tmp_path / ".text.writing").symlink_to(other / "file")
    (tmp_path / ".folder.writing").symlink_to(other)
    files.write_text(tmp_path / "text", "new")
    with pytest.raises(OSError, match=r"\.folder\.writing"), files.atomic_folder(tmp_path / "folder"):
        pass
    assert (other / "file").read_text() == "mine"
    assert (tmp_path / "text").read_text() == "new"


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_the_files_of_a_folder_honour_the_umask(there: bool, mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        folder = tmp_path / "folder"
        if there:
            folder.mkdir()
        with files.atomic_folder(folder) as draft:
            (draft / "part.v1").mkdir()
            (draft / "part.v1" / "private").touch(0o600)
            (draft / "file").touch()
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask


@pytest.mark.parametrize("out", ["link", "link/folder"])
def test_a_link_to_nowhere_is_not_a_free_folder(out: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="link is a link to a folder that does not exist"):
        files.is_free(tmp_path / out)
