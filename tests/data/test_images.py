import io
import json
import struct
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file

import tmatch as tm
from tmatch.codec import Codec
from tmatch.codec.saved import shipped_autoencoder
from tmatch.data import FolderImages, ShapeImages
from tmatch.data.encode import encode_dataset
from tmatch.data.images import center_crop, grid, load_image, read_image, save_image
from tmatch.data.shapes import VOCABULARY


def folder_of(path: Path, count: int = 5) -> Path:
    """A folder of single-colour images with captions."""
    path.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(count):
        Image.new("RGB", (40, 24), (k, 2 * k, 255 - k)).save(path / f"{k}.png")
        rows.append({"file_name": f"{k}.png", "text": f"image number {k % 3}"})
    (path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def test_an_image_is_saved_and_loaded(tmp_path: Path) -> None:
    image = torch.arange(3 * 8 * 8).view(3, 8, 8) / 255
    save_image(image, tmp_path / "new" / "x.png")
    assert torch.equal(load_image(tmp_path / "new" / "x.png", 8) / 255, image)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["x.png"], "no temporary file is left"


def test_a_grid_contains_every_image_at_its_position() -> None:
    images = tm.RandomStreams(range(5)).uniform(3, 4, 6)
    sheet = grid(images, columns=2, gap=1)
    assert sheet.shape == (3, 3 * 5 + 1, 2 * 7 + 1)
    assert torch.equal(sheet[:, 6:10, 8:14], images[3])


def test_a_folder_is_cropped_and_split(tmp_path: Path) -> None:
    data = FolderImages(folder_of(tmp_path, 45), size=16)
    held_out = FolderImages(tmp_path, size=16, held_out=True)
    assert (len(data), len(held_out)) == (43, 2)
    small = [FolderImages(folder_of(tmp_path / "small", 3), 16, held_out=held) for held in (False, True)]
    assert [len(images) for images in small] == [2, 1]
    assert not set(data.names) & set(held_out.names)
    assert data.captions[:2] == ["image number 0", "image number 1"]
    batches = list(data.batches(20))
    assert [batch.shape for batch in batches] == [(20, 3, 16, 16), (20, 3, 16, 16), (3, 3, 16, 16)]
    assert batches[0][7, :, 3, 3].tolist() == pytest.approx([7 / 255, 14 / 255, 248 / 255])


def test_a_fingerprint_changes_with_the_images(tmp_path: Path) -> None:
    data = FolderImages(folder_of(tmp_path / "one"), 16)
    other = [FolderImages(tmp_path / "one", 8), FolderImages(tmp_path / "one", 16, held_out=True)]
    assert data.fingerprint() == FolderImages(tmp_path / "one", 16).fingerprint()
    Image.new("RGB", (9, 9)).save(tmp_path / "one" / data.names[0])
    prints = [one.fingerprint() for one in (data, *other, ShapeImages(3, 6), ShapeImages(3, 7), ShapeImages(4, 6))]
    assert len(set(prints)) == len(prints)
    assert prints[0] != FolderImages(folder_of(tmp_path / "one"), 16).fingerprint()
    assert prints[3] == ShapeImages(3, 6).fingerprint()


def jpeg(image: Image.Image, *tags: bytes) -> io.BytesIO:
    """A JPEG file with raw EXIF tags."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + b"".join(tags) + bytes(4)
    start, rest = file.getvalue()[:2], file.getvalue()[2:]
    return io.BytesIO(start + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + rest)


@pytest.mark.parametrize("orientation", range(10))
def test_damaged_tags_do_not_affect_the_orientation(orientation: int) -> None:
    image = Image.linear_gradient("L").resize((32, 16)).rotate(20).convert("RGB")
    turn = struct.pack("<HHII", 0x0112, 3, 1, orientation)
    broken = struct.pack("<HHI4s", 0x011A, 2, 4, b"abc\0")  # a resolution that is not a number
    with Image.open(jpeg(image, turn)) as whole:
        expected = ImageOps.exif_transpose(whole)
    for tags in ((turn,), (turn, broken), (broken, turn)):
        assert read_image(jpeg(image, *tags)).tobytes() == expected.tobytes()
    assert expected.size == ((16, 32) if 5 <= orientation <= 8 else (32, 16))


def test_transparency_is_composed_onto_white(tmp_path: Path) -> None:
    """As Pillow does, to 1/255, for RGBA, greyscale and palette images."""
    clear = Image.new("RGBA", (16, 16), (200, 40, 0))
    clear.putalpha(Image.linear_gradient("L").resize((16, 16)))
    for image in (clear, clear.convert("LA"), clear.quantize()):
        image.save(tmp_path / "clear.png")
        rgba = image.convert("RGBA")
        expected = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
        torch.testing.assert_close(
            load_image(tmp_path / "clear.png", 16) / 255, center_crop(expected, 16, 16) / 255, atol=0.005, rtol=0
        )


def test_a_transparent_image_is_not_copied_needlessly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large image is held twice, as stored and on white, and not five times."""
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(tmp_path / "clear.png")

    def reject(image: Image.Image, *_: object) -> Image.Image:
        raise AssertionError(f"{image} is copied")

    for way in ("copy", "convert"):
        monkeypatch.setattr(Image.Image, way, reject)
    assert read_image(tmp_path / "clear.png").getextrema() == ((255, 255),) * 3


def test_a_large_jpeg_is_decoded_at_a_smaller_size(tmp_path: Path) -> None:
    image = Image.radial_gradient("L").resize((400, 300)).convert("RGB")
    turn = struct.pack("<HHII", 0x0112, 3, 1, 6)
    (tmp_path / "large.jpg").write_bytes(jpeg(image, turn).getvalue())
    sizes = {150: (150, 200), 151: (300, 400), 75: (75, 100), 30: (38, 50), None: (300, 400)}
    for at_least, size in sizes.items():
        assert read_image(tmp_path / "large.jpg", at_least).size == size
    whole = center_crop(read_image(tmp_path / "large.jpg"), 32, 32) / 255
    torch.testing.assert_close(load_image(tmp_path / "large.jpg", 32) / 255, whole, atol=0.02, rtol=0)


@pytest.mark.parametrize("size", [(16, 16), (8, 24), (24, 8)])
@pytest.mark.parametrize("source", [(40, 24), (24, 40), (33, 33)])
def test_crops_are_central_and_keep_proportions(source: tuple[int, int], size: tuple[int, int]) -> None:
    """As Pillow's own `fit`."""
    pixels = (tm.RandomStreams([0]).uniform(source[1], source[0], 3)[0] * 255).byte()
    image = Image.fromarray(pixels.numpy())
    fitted = ImageOps.fit(image, size[::-1], Image.Resampling.LANCZOS)
    expected = torch.tensor(list(fitted.tobytes())).view(*size, 3).movedim(-1, 0)
    assert (center_crop(image, *size).int() - expected).abs().max() <= 1


def test_captions_may_contain_unicode_line_separators_and_lines_may_end_in_crlf(tmp_path: Path) -> None:
    words = ["a\u2028b", "a\x85b", "plain"]
    rows = [json.dumps({"file_name": f"{k}.png", "text": text}, ensure_ascii=False) for k, text in enumerate(words)]
    file = folder_of(tmp_path, 3) / "metadata.jsonl"
    for end in ("\n", "\r\n"):
        file.write_bytes(b"\xef\xbb\xbf" + (end.join(rows) + end).encode())
        data = FolderImages(tmp_path, 16, fold=3)
        assert data.captions + FolderImages(tmp_path, 16, fold=3, held_out=True).captions == words


def test_unusable_rows_are_counted_and_the_first_is_shown(tmp_path: Path) -> None:
    """Reasons beside those of `tmatch prepare`."""
    file = folder_of(tmp_path) / "metadata.jsonl"
    lines = file.read_text().strip()
    for name, text, reason in (("0.png", ["a", "b"], "several captions"), ("none.png", "a", "does not exist")):
        file.write_text("\n".join((lines, json.dumps({"file_name": name, "text": text}), "", "[]")))
        with pytest.raises(ValueError, match=rf"2 of the 7 rows .*\(first: metadata\.jsonl, image 6: .*{reason}.*\)"):
            FolderImages(tmp_path, 16)


def test_folders_without_captions_and_damaged_images_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no images"):
        FolderImages(tmp_path, 16)
    with pytest.raises(ValueError, match="does not exist"):
        FolderImages(tmp_path / "nowhere", 16)
    data = FolderImages(folder_of(tmp_path), 16)
    whole = (file := tmp_path / data.names[1]).read_bytes()
    for damaged in (b"not an image", whole[:60]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"1\.png cannot be read as an image"):
            data.load(range(3))
    for lines in ("", '{"file_name": "0.png", "text": "a"}'):
        (tmp_path / "metadata.jsonl").write_text(lines)
        with pytest.raises(ValueError, match="at least two"):
            FolderImages(tmp_path, 16)


def test_shapes_use_every_word() -> None:
    data = ShapeImages(3, 2500)
    assert {word for caption in data.captions for word in caption.split()} == set(VOCABULARY)
    assert torch.equal(data.load([2100]), data.shapes.scenes([2100]).render())
    assert data.captions[2100] == data.shapes.scenes([2100]).captions[0]


@pytest.mark.parametrize("latent", [True, False])
def test_states_decode_to_the_images_and_are_cached(
    latent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, device = ShapeImages(3, 6), torch.device("cpu")
    codec = Codec(tm.Patchify((2, 2)), shipped_autoencoder() if latent else None)
    x = codec.encode(data.load(range(6)))
    assert x.shape == ((6, 4, 4, 16) if latent else (6, 16, 16, 12))
    torch.testing.assert_close(codec.decode(x), data.load(range(6)), atol=0.3 if latent else 1e-6, rtol=0)
    assert torch.equal(encode_dataset(codec, data, device), x)
    assert torch.equal(encode_dataset(codec, data, device, tmp_path / "cache", "abc", progress=True), x)
    monkeypatch.setattr(Codec, "encode", lambda *_: torch.zeros(1))
    assert torch.equal(encode_dataset(codec, data, device, tmp_path / "cache", "abc"), x)
    assert encode_dataset(codec, data, device).tolist() == [0], "without a cache, images are encoded"
    monkeypatch.undo()
    file = tmp_path / "cache" / "abc.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert torch.equal(encode_dataset(codec, data, device, tmp_path / "cache", "abc"), x)
    assert torch.equal(load_file(file)["states"], x), "a damaged cache is replaced"
    assert torch.equal(encode_dataset(codec, data, device, Path("/proc/nowhere"), "abc"), x), "only a warning"
