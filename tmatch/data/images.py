"""Images in files, alone and in grids."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from tmatch.files import atomic_write

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image upright, by the orientation that its camera wrote."""


def grid(images: Tensor, columns: int | None = None, gap: int = 2) -> Tensor:
    """Many images (n, 3, height, width) as one, row by row on white."""
    count, channels, height, width = images.shape
    columns = min(count, columns or math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    sheet = images.new_ones(channels, rows * (height + gap) + gap, columns * (width + gap) + gap)
    for k, image in enumerate(images):
        top, left = gap + k // columns * (height + gap), gap + k % columns * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def to_image(image: Tensor, scale: int = 1) -> Image.Image:
    """An image (3, height, width) in [0, 1], each pixel `scale` wide."""
    pixels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).cpu()
    made = Image.fromarray(pixels.numpy())
    return made.resize((made.width * scale, made.height * scale), Image.Resampling.NEAREST)


def save_image(image: Tensor, path: Path, scale: int = 1) -> None:
    """Write an image (3, height, width) in [0, 1] as PNG."""
    with atomic_write(path) as draft:
        to_image(image, scale).save(draft, format="PNG")


def save_animation(images: Sequence[Tensor], path: Path, scale: int = 1, seconds: float = 0.25) -> None:
    """Write images one after the other, each shown so long and the last longer, again and again, as GIF."""
    first, *rest = [to_image(image, scale) for image in images]
    duration = [round(1000 * seconds)] * len(rest) + [2000]
    with atomic_write(path) as draft:
        first.save(draft, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)


def load_image(path: Path, size: int) -> Tensor:
    """The largest square in the middle of an image, (3, size, size) in [0, 1]."""
    try:
        return cut(read_image(path, at_least=2 * size), size, size)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as an image ({error}); mend it, or take it out.") from error


def read_image(file: Path | BinaryIO, at_least: int | None = None) -> Image.Image:
    """An image as people see it: upright, in RGB, on white where it is transparent; the first of an animation.

    Where sides of `at_least` so many pixels are enough, a larger JPEG is decoded at a half, a quarter or an eighth of
    its size, which takes a fraction of the time.
    """
    try:
        image, turn = _opened(file, at_least)  # which holds a huge image once by now
        return image if turn is None else image.transpose(turn)
    except UnidentifiedImageError as error:
        raise ValueError("it is no image of a known kind") from error
    except MemoryError:
        raise
    except Exception as error:  # damaged files make Pillow raise about anything
        raise ValueError(str(error) or type(error).__name__) from error


def _opened(file: Path | BinaryIO, at_least: int | None) -> tuple[Image.Image, Image.Transpose | None]:
    """An image in RGB as its file has it, and what makes it upright."""
    with Image.open(file, formats=_known()) as opened:
        if at_least is not None:
            opened.draft("RGB", (at_least, at_least))
        opened.load()
        turn = _turn(opened)
        image = _eight_bits(opened)
        if not image.has_transparency_data:
            return (image if image.mode == "RGB" else image.convert("RGB")), turn
        if image.mode != "RGBA":
            image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        return white, turn


def _turn(image: Image.Image) -> Image.Transpose | None:
    """By the orientation alone: other tags may be damaged, and an image without it is taken as it is."""
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except MemoryError:
        raise
    except Exception:  # damaged tags make Pillow raise about anything
        return None


@cache
def _known() -> list[str]:
    """The kinds of images that are read: all but one, for which Pillow would run another program."""
    Image.init()
    return [kind for kind in Image.ID if kind != "EPS"]


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, which Pillow would clip, as grey of eight; nothing finer."""
    if image.mode == "F":
        raise ValueError("its numbers are not whole")
    if not image.mode.startswith("I"):
        return image
    if image.mode not in ("I", "I;16"):  # of another order of bytes
        image = image.convert("I")
    low, high = image.convert("I").getextrema()
    if not 0 <= low <= high <= 65535:  # type: ignore[operator]
        raise ValueError("its grey is not of 16 bits")
    return image.point(lambda value: value / 257, "L")


def cut(image: Image.Image, height: int, width: int) -> Tensor:
    """The largest part in the middle of an image that has these proportions, (3, height, width) in [0, 1]."""
    return pixels(image, height, width) / 255


def pixels(image: Image.Image, height: int, width: int) -> Tensor:
    """The same in whole numbers up to 255."""
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
    box = (left, top, left + scale * width, top + scale * height)
    image = image.resize((width, height), Image.Resampling.LANCZOS, box)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3).movedim(-1, 0)
