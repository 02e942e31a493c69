"""Reading and writing image files."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from tmatch.files import atomic_write


def grid(images: Tensor, columns: int | None = None, gap: int = 2) -> Tensor:
    """Images (n, 3, height, width) arranged in rows on a white background."""
    count, channels, height, width = images.shape
    columns = min(count, columns or math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    sheet = images.new_ones(channels, rows * (height + gap) + gap, columns * (width + gap) + gap)
    for k, image in enumerate(images):
        top, left = gap + k // columns * (height + gap), gap + k % columns * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def to_image(image: Tensor, scale: int = 1) -> Image.Image:
    """A PIL image from (3, height, width) in [0, 1], enlarged `scale` times."""
    pixels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).cpu()
    converted = Image.fromarray(pixels.numpy())
    return converted.resize((converted.width * scale, converted.height * scale), Image.Resampling.NEAREST)


def write_png(image: Image.Image, path: Path, settings: Mapping[str, Any] | None = None) -> None:
    """Write an image as PNG, with how it was generated as JSON in the text field 'tmatch'."""
    info = PngInfo()
    if settings is not None:
        info.add_text("tmatch", json.dumps(settings))
    with atomic_write(path) as draft:
        image.save(draft, format="PNG", pnginfo=info)


def read_settings(path: Path) -> Any:  # noqa: ANN401
    """How an image was generated, as `write_png` wrote it; None for another image or file."""
    with suppress(OSError, ValueError, SyntaxError), Image.open(path, formats=["PNG"]) as image:
        return json.loads(image.info.get("tmatch", "null"))
    return None


def save_image(image: Tensor, path: Path, scale: int = 1, settings: Mapping[str, Any] | None = None) -> None:
    """Write an image (3, height, width) in [0, 1] as PNG, enlarged `scale` times."""
    write_png(to_image(image, scale), path, settings)


def save_animation(images: Sequence[Tensor], path: Path, scale: int = 1, seconds: float = 0.25) -> None:
    """Write images as a looping GIF with `seconds` per frame, and two seconds for the last."""
    first, *rest = [to_image(image, scale) for image in images]
    duration = [round(1000 * seconds)] * len(rest) + [2000]
    with atomic_write(path) as draft:
        first.save(draft, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)


def load_image(path: Path, size: int) -> Tensor:
    """Read an image and crop it to its centre square, (3, size, size), as uint8."""
    try:
        return center_crop(read_image(path, at_least=2 * size), size, size)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as an image ({error}); replace or remove it.") from error


def read_image(file: Path | BinaryIO, at_least: int | None = None) -> Image.Image:
    """An upright RGB image, composed onto white if it is transparent; the first frame of an animation.

    With `at_least`, larger JPEG files are decoded at 1/2, 1/4 or 1/8 of their size, as long as both sides keep that
    many pixels; this is much faster.
    """
    try:
        image, orientation = _open(file, at_least)  # closes the file, to hold a large image only once
        image.info = {}  # other EXIF tags may be damaged
        if orientation != 1:
            image.getexif()[ExifTags.Base.Orientation] = orientation
            ImageOps.exif_transpose(image, in_place=True)
        return image
    except UnidentifiedImageError as error:
        raise ValueError("the image format is unknown") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises exceptions of any type for damaged files
        raise ValueError(str(error) or type(error).__name__) from error


def _open(file: Path | BinaryIO, at_least: int | None) -> tuple[Image.Image, int]:
    """An RGB image as stored, and its EXIF orientation."""
    with Image.open(file, formats=_formats()) as opened:
        if at_least is not None:
            opened.draft("RGB", (at_least, at_least))
        opened.load()
        orientation = 1
        with suppress(Exception):  # Pillow raises exceptions of any type for damaged tags
            orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
        image = _to_8_bits(opened)
        if not image.has_transparency_data:
            return image.convert("RGB") if image.mode != "RGB" else image, orientation
        image = image.convert("RGBA") if image.mode != "RGBA" else image
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        return white, orientation


@cache
def _formats() -> list[str]:
    """All formats that Pillow reads, except EPS, for which it would run another program."""
    Image.init()
    return [kind for kind in Image.ID if kind != "EPS"]


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit greyscale, which Pillow would clip, to 8 bits."""
    if image.mode == "F":
        raise ValueError("floating-point images are not supported")
    if not image.mode.startswith("I"):
        return image
    if image.mode not in ("I", "I;16"):  # big-endian
        image = image.convert("I")
    low, high = image.convert("I").getextrema()
    if not 0 <= low <= high <= 65535:  # type: ignore[operator]
        raise ValueError("greyscale values exceed 16 bits")
    return image.point(lambda value: value / 257, "L")


def center_crop(image: Image.Image, height: int, width: int) -> Tensor:
    """The largest central crop with this aspect ratio, resized to (3, height, width), as uint8."""
    if image.size != (width, height):
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
        box = (left, top, left + scale * width, top + scale * height)
        image = image.resize((width, height), Image.Resampling.LANCZOS, box)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3).movedim(-1, 0)
