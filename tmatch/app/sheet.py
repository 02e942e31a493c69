"""Sample sheets: one labelled row per prompt."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tmatch.data.images import grid, to_image
from tmatch.files import atomic_write

PER_LINE, LABEL_WIDTH, IMAGE_WIDTH = 8, 240, 128
"""Images per line of a row, and widths in pixels: of a label, and to which small images are enlarged."""


def save_sheet(images: Tensor, prompts: Sequence[str], path: Path) -> None:
    """Write images (prompts * n, 3, height, width) as PNG: each prompt to the left of its n images."""
    scale = max(1, IMAGE_WIDTH // images.shape[-1])
    rows = [to_image(grid(row, PER_LINE, gap=1), scale) for row in images.split(len(images) // len(prompts))]
    sheet = Image.new("RGB", (LABEL_WIDTH + max(row.width for row in rows), sum(row.height for row in rows)), "white")
    draw, font, top = ImageDraw.Draw(sheet), ImageFont.load_default(16), 0
    for row, prompt in zip(rows, prompts, strict=True):
        sheet.paste(row, (LABEL_WIDTH, top))
        label = fill(prompt, width=28, max_lines=6, placeholder=" ...")
        draw.multiline_text((8, top + row.height // 2), label, fill="black", font=font, anchor="lm")
        top += row.height
    with atomic_write(path) as draft:
        sheet.save(draft, format="PNG")
