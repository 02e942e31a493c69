"""Files are written completely or not at all."""

import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from PIL import Image

from tmatch import files
from tmatch.data.images import save_image


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
