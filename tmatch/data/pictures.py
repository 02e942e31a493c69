"""Pictures in files, alone and in grids."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from tmatch.files import drafted


def grid(images: Tensor, columns: int | None = None, gap: int = 2) -> Tensor:
    """Many pictures (n, 3, height, width) as one, row by row on white."""
    count, channels, height, width = images.shape
    columns = min(count, columns or math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    sheet = images.new_ones(channels, rows * (height + gap) + gap, columns * (width + gap) + gap)
    for k, image in enumerate(images):
        top, left = gap + k // columns * (height + gap), gap + k % columns * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def to_image(picture: Tensor, scale: int = 1) -> Image.Image:
    """A picture (3, height, width) in [0, 1], each pixel `scale` wide."""
    pixels = (picture.detach().clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).cpu()
    image = Image.fromarray(pixels.numpy())
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def save_picture(picture: Tensor, path: Path, scale: int = 1) -> None:
    """Write a picture (3, height, width) in [0, 1] as PNG."""
    with drafted(path) as draft:
        to_image(picture, scale).save(draft, format="PNG")


def save_animation(pictures: Sequence[Tensor], path: Path, scale: int = 1, seconds: float = 0.25) -> None:
    """Write pictures one after the other, each shown so long and the last longer, again and again, as GIF."""
    first, *rest = [to_image(picture, scale) for picture in pictures]
    duration = [round(1000 * seconds)] * len(rest) + [2000]
    with drafted(path) as draft:
        first.save(draft, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)


def load_picture(path: Path, size: int) -> Tensor:
    """The largest square in the middle of a picture, (3, size, size) in [0, 1]."""
    try:
        return cut(read_picture(path), size, size)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a picture ({error}); mend it, or take it out.") from error


def read_picture(file: Path | BinaryIO) -> Image.Image:
    """A picture as people see it: upright, in RGB, on white where it is transparent; the first of an animation."""
    try:
        with Image.open(file, formats=_known()) as opened:
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)  # a huge picture is held once, not three times
            upright = _eight_bits(opened if opened.mode == "RGB" else opened.copy())
            if not upright.has_transparency_data:
                return upright if upright.mode == "RGB" else upright.convert("RGB")
            rgba = upright.convert("RGBA")
    except UnidentifiedImageError as error:
        raise ValueError("it is no picture of a known kind") from error
    except MemoryError:
        raise
    except Exception as error:  # damaged files make Pillow raise about anything
        raise ValueError(str(error) or type(error).__name__) from error
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


@cache
def _known() -> list[str]:
    """The kinds of pictures that are read: all but one, for which Pillow would run another program."""
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
    """The largest part in the middle of a picture that has these proportions, (3, height, width) in [0, 1]."""
    return pixels(image, height, width) / 255


def pixels(image: Image.Image, height: int, width: int) -> Tensor:
    """The same in whole numbers up to 255."""
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
    box = (left, top, left + scale * width, top + scale * height)
    image = image.resize((width, height), Image.Resampling.LANCZOS, box)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3).movedim(-1, 0)
