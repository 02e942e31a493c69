import io
import json
import struct
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps

import tmatch as tm
from tmatch.codec import Codec
from tmatch.data import FolderImages, ShapeImages
from tmatch.data.images import cut, grid, load_image, read_image, save_image
from tmatch.data.shapes import VOCABULARY
from tmatch.recipes import committed_autoencoder


def folder_of(path: Path, count: int = 5) -> Path:
    """A folder of plain images, captioned."""
    path.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(count):
        Image.new("RGB", (40, 24), (k, 2 * k, 255 - k)).save(path / f"{k}.png")
        rows.append({"file_name": f"{k}.png", "text": f"image number {k % 3}"})
    (path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def test_a_image_survives_its_file(tmp_path: Path) -> None:
    image = torch.arange(3 * 8 * 8).view(3, 8, 8) / 255
    save_image(image, tmp_path / "new" / "x.png")
    assert torch.equal(load_image(tmp_path / "new" / "x.png", 8), image)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["x.png"], "no draft is left"


def test_a_grid_holds_every_image_in_its_place() -> None:
    images = tm.RandomStreams(range(5)).uniform(3, 4, 6)
    sheet = grid(images, columns=2, gap=1)
    assert sheet.shape == (3, 3 * 5 + 1, 2 * 7 + 1)
    assert torch.equal(sheet[:, 6:10, 8:14], images[3])


def test_a_folder_is_cut_to_squares_and_split(tmp_path: Path) -> None:
    data = FolderImages(folder_of(tmp_path, 45), size=16)
    held_out = FolderImages(tmp_path, size=16, held_out=True)
    assert (len(data), len(held_out)) == (43, 2)
    assert not set(data.files) & set(held_out.files)
    assert data.captions[:2] == ["image number 0", "image number 1"]
    batches = list(data.batches(20))
    assert [batch.shape for batch in batches] == [(20, 3, 16, 16), (20, 3, 16, 16), (3, 3, 16, 16)]
    assert batches[0][7, :, 3, 3].tolist() == pytest.approx([7 / 255, 14 / 255, 248 / 255])


def test_a_small_folder_holds_one_out(tmp_path: Path) -> None:
    data, held_out = (FolderImages(folder_of(tmp_path, 3), 16, held_out=locked) for locked in (False, True))
    assert (len(data), len(held_out)) == (2, 1)


def test_images_are_seen_as_people_see_them(tmp_path: Path) -> None:
    """Turned as their camera says, and transparent parts on white."""
    turned = Image.new("RGB", (8, 8), "black")
    turned.paste("red", (0, 0, 8, 4))
    exif = turned.getexif()
    exif[0x0112] = 3  # upside down
    turned.save(tmp_path / "turned.png", exif=exif)
    assert load_image(tmp_path / "turned.png", 8)[0, :, 0].tolist() == [0.0] * 4 + [1.0] * 4
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert load_image(tmp_path / "clear.png", 8).min() == 1


def jpeg(image: Image.Image, *tags: bytes) -> io.BytesIO:
    """An image with raw tags of EXIF."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + b"".join(tags) + bytes(4)
    start, rest = file.getvalue()[:2], file.getvalue()[2:]
    return io.BytesIO(start + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + rest)


@pytest.mark.parametrize("orientation", range(10))
def test_a_broken_tag_beside_the_orientation_is_no_harm(orientation: int) -> None:
    image = Image.linear_gradient("L").resize((32, 16)).rotate(20).convert("RGB")
    turn = struct.pack("<HHII", 0x0112, 3, 1, orientation)
    broken = struct.pack("<HHI4s", 0x011A, 2, 4, b"abc\0")  # a resolution in letters
    with Image.open(jpeg(image, turn)) as whole:
        expected = ImageOps.exif_transpose(whole)
    for tags in ((turn,), (turn, broken), (broken, turn)):
        assert read_image(jpeg(image, *tags)).tobytes() == expected.tobytes()
    assert expected.size == ((16, 32) if 5 <= orientation <= 8 else (32, 16))


def test_transparent_parts_are_mixed_with_white(tmp_path: Path) -> None:
    """As Pillow composes them, to one in 255: half transparent, in a palette, and in grey."""
    clear = Image.new("RGBA", (16, 16), (200, 40, 0))
    clear.putalpha(Image.linear_gradient("L").resize((16, 16)))
    for image in (clear, clear.convert("LA"), clear.quantize()):
        image.save(tmp_path / "clear.png")
        rgba = image.convert("RGBA")
        expected = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
        torch.testing.assert_close(load_image(tmp_path / "clear.png", 16), cut(expected, 16, 16), atol=0.005, rtol=0)


def test_a_transparent_image_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge one is held twice, as it is and on white, and not five times."""
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(tmp_path / "clear.png")

    def refused(image: Image.Image, *_: object) -> Image.Image:
        raise AssertionError(f"{image} is copied")

    for way in ("copy", "convert"):
        monkeypatch.setattr(Image.Image, way, refused)
    assert read_image(tmp_path / "clear.png").getextrema() == ((255, 255),) * 3


def test_a_large_jpeg_is_decoded_smaller_where_that_is_enough(tmp_path: Path) -> None:
    image = Image.radial_gradient("L").resize((400, 300)).convert("RGB")
    turn = struct.pack("<HHII", 0x0112, 3, 1, 6)
    (tmp_path / "large.jpg").write_bytes(jpeg(image, turn).getvalue())
    sizes = {150: (150, 200), 151: (300, 400), 75: (75, 100), 30: (38, 50), None: (300, 400)}
    for at_least, size in sizes.items():
        assert read_image(tmp_path / "large.jpg", at_least).size == size
    whole = cut(read_image(tmp_path / "large.jpg"), 32, 32)
    torch.testing.assert_close(load_image(tmp_path / "large.jpg", 32), whole, atol=0.02, rtol=0)


def test_captions_may_hold_other_ends_of_lines_and_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    words = ["a\u2028b", "a\x85b", "plain"]
    rows = [json.dumps({"file_name": f"{k}.png", "text": text}, ensure_ascii=False) for k, text in enumerate(words)]
    file = folder_of(tmp_path, 3) / "metadata.jsonl"
    for end in ("\n", "\r\n"):
        file.write_bytes(b"\xef\xbb\xbf" + (end.join(rows) + end).encode())
        data = FolderImages(tmp_path, 16, fold=3)
        assert data.captions + FolderImages(tmp_path, 16, fold=3, held_out=True).captions == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"file_name": "0.png"}', "line 1 has no 'text'"),
        ('{"file_name": "0.png", "text": "a"}\n{"text": "b"}', "line 2 has no 'file_name'"),
        ('{"file_name": "0.png", "text": 3}', "line 1 has a 'text' that is not a text"),
        ("not json", "line 1 is not JSON"),
        ("[]", "line 1 has no 'file_name'"),
        ("\n", "lists no images"),
        ('{"file_name": "none.png", "text": "a"}\n{"file_name": "0.png", "text": "a"}', "none.png is not there"),
        ('{"file_name": "../x.png", "text": "a"}\n{"file_name": "0.png", "text": "a"}', "outside of that folder"),
        ('{"file_name": "0.png", "text": "a"}', "lists one image"),
    ],
)
def test_bad_caption_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (folder_of(tmp_path) / "metadata.jsonl").write_text(text)
    with pytest.raises(ValueError, match=words):
        FolderImages(tmp_path, 16)


def test_bad_lines_are_counted_and_the_first_is_shown(tmp_path: Path) -> None:
    file = folder_of(tmp_path) / "metadata.jsonl"
    good = file.read_text().strip()
    file.write_text(f'{good}\n{{"file_name": "0.png"}}\n\nnot json\n{{"file_name": "none.png", "text": "a"}}')
    with pytest.raises(ValueError, match=r"3 of its 8 lines: line 6 has no 'text', .*, for one; .*`tmatch prepare`"):
        FolderImages(tmp_path, 16)
    file.write_text(f"{good}\nnot json")
    with pytest.raises(ValueError, match=r"for 1 of its 6 lines: line 6 is not JSON \(.*\); mend that"):
        FolderImages(tmp_path, 16)
    with pytest.raises(ValueError, match=r"There is no folder .*nowhere; give one that holds images"):
        FolderImages(tmp_path / "nowhere", 16)


def test_a_folder_without_captions_and_a_damaged_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no metadata"):
        FolderImages(tmp_path, 16)
    data = FolderImages(folder_of(tmp_path), 16)
    whole = data.files[1].read_bytes()
    for damaged in (b"not an image", whole[:60]):
        data.files[1].write_bytes(damaged)
        with pytest.raises(ValueError, match=r"1\.png cannot be read as an image"):
            data.load(range(3))


def test_shapes_come_with_every_word() -> None:
    data = ShapeImages(3, 2500)
    assert {word for caption in data.captions for word in caption.split()} == set(VOCABULARY)
    assert torch.equal(data.load([2100]), data.shapes.scenes([2100]).render())
    assert data.captions[2100] == data.shapes.scenes([2100]).captions[0]


@pytest.mark.parametrize("latent", [True, False])
def test_a_codec_and_back(latent: bool) -> None:
    data = ShapeImages(3, 6)
    codec = Codec(tm.Patchify((2, 2)), committed_autoencoder() if latent else None)
    x = codec.encode_all(data.batches(), torch.device("cpu"))
    assert x.shape == ((6, 4, 4, 16) if latent else (6, 16, 16, 12))
    torch.testing.assert_close(codec.decode(x), data.load(range(6)), atol=0.3 if latent else 1e-6, rtol=0)
