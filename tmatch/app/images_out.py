"""Where `tmatch generate` writes: a folder with one file per image, or one file with all of them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tmatch.data.images import grid, read_settings, save_animation, save_image, to_image, write_png
from tmatch.files import write_text
from tmatch.generation import GeneratedImages
from tmatch.generation.frames import evenly_spaced
from tmatch.generation.inputs import InputKind
from tmatch.rng import as_seed

PER_LINE, LABEL_WIDTH, IMAGE_WIDTH, MOST, FRAMES = 8, 240, 128, 1024, 13
"""Images per line of a sheet, widths in pixels of a label and of an image, images at most; frames of a path strip."""
_PLURALS: dict[InputKind, str] = {"prompt": "prompts", "class": "classes", "unconditional": "unconditional"}


@dataclass(frozen=True)
class Request:
    """`images` images for each input of a kind, with consecutive seeds, and the settings of all."""

    kind: InputKind
    inputs: Sequence[str | None]
    images: int
    first_seed: int
    settings: dict[str, Any]

    @property
    def seeds(self) -> range:
        """The seed of each image."""
        return range(self.first_seed, as_seed(self.first_seed + self.images * len(self.inputs) - 1) + 1)

    @property
    def titles(self) -> list[str]:
        """What each input is called."""
        return [self.kind if given is None else given for given in self.inputs]

    def input(self, index: int) -> str | None:
        """What an image is generated from."""
        return self.inputs[index // self.images]

    def title(self, index: int) -> str:
        """What the input of an image is called."""
        return self.titles[index // self.images]

    def record(self, index: int) -> dict[str, Any]:
        """Everything that an image depends on."""
        given = self.input(index)
        return {self.kind: True if given is None else given, "seed": self.seeds[index], **self.settings}

    def row(self, index: int) -> dict[str, Any]:
        """The condition of an image, in the words of an `imagefolder` of Hugging Face datasets."""
        given = self.input(index)
        return {} if given is None else {"text" if self.kind == "prompt" else "label": given}

    def shared(self) -> dict[str, Any]:
        """Everything that a sheet of all images depends on."""
        inputs = {_PLURALS[self.kind]: True if self.inputs == [None] else list(self.inputs)}
        return {**inputs, "images": self.images, "seed": self.first_seed, **self.settings}


class Folder:
    """NNNNNN.png for each image, named by its seed, and metadata.jsonl at the end; an existing folder is completed."""

    def __init__(self, out: Path, request: Request) -> None:
        self.out = out
        self.request = request
        out.mkdir(parents=True, exist_ok=True)
        names = {f.name for f in out.iterdir() if not f.name.startswith(".")}  # hidden: drafts of a killed process, too
        seeds = {m[0]: int(m[1]) for name in names if (m := re.fullmatch(r"(-?\d+)(-path\.gif|(-path)?\.png)", name))}
        written = {name: seed for name, seed in seeds.items() if "-path" not in name and seed in request.seeds}
        others = [name for name in names - {"metadata.jsonl"} if seeds.get(name) not in request.seeds]
        others += [f for f, k in written.items() if read_settings(out / f) != request.record(k - request.first_seed)]
        if others or (not written and names):
            other = min(others or names)
            raise ValueError(f"{out} is not empty and has {other}, not of this command; give a new folder.")

    def _file(self, index: int) -> Path:
        return self.out / f"{self.request.seeds[index]:06d}.png"

    def complete(self, part: range) -> bool:
        """Whether the images of a batch are written already."""
        return all(self._file(k).exists() for k in part)

    def write(self, part: range, result: GeneratedImages) -> None:
        """Write a batch of images, and their sampling path if it was kept."""
        for k, image in zip(part, result.images, strict=True):
            if not self._file(k).exists():
                if result.path:
                    _save_path(self._file(k), [frame[k - part.start, None] for frame in result.path])
                save_image(image, self._file(k), settings=self.request.record(k))

    def finish(self) -> list[Path]:
        """Write what remains once all images are written; return the files to report."""
        rows = (
            {"file_name": self._file(k).name, **self.request.row(k), "seed": seed}
            for k, seed in enumerate(self.request.seeds)
        )
        write_text(self.out / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return [self.out]


class Sheet:
    """One image, or a titled row of images for each input, written again after each batch; and the path."""

    def __init__(self, out: Path, request: Request) -> None:
        self.out = out
        self.request = request
        if len(request.seeds) > MOST:
            raise ValueError(f"A sheet holds {MOST:,} images; give a folder as --out for {len(request.seeds):,}.")
        out.parent.mkdir(parents=True, exist_ok=True)
        self._sheet: Image.Image | None = None
        self._path: list[list[Tensor]] = []

    def complete(self, part: range) -> bool:
        """No: a sheet is always made from the beginning."""
        return False

    def write(self, part: range, result: GeneratedImages) -> None:
        """Add a batch of images to the sheet, and keep their sampling path."""
        height, width = result.images.shape[-2:]
        if result.path:
            self._path.append(result.path)
        if len(self.request.seeds) == 1:
            save_image(result.images[0], self.out, max(1, 256 // width), self.request.record(0))
            return
        scale, each = max(1, IMAGE_WIDTH // width), self.request.images
        columns, lines = min(each, PER_LINE), -(-each // PER_LINE)
        row = (lines * (height + 1) + 1) * scale
        if self._sheet is None:
            self._sheet = self._blank(LABEL_WIDTH + (columns * (width + 1) + 1) * scale, row)
        for k, image in zip(part, result.images, strict=True):
            line, column = divmod(k % each, columns)
            left, top = ((1 + n * (side + 1)) * scale for n, side in ((column, width), (line, height)))
            self._sheet.paste(to_image(image, scale), (LABEL_WIDTH + left, k // each * row + top))
        write_png(self._sheet, self.out, self.request.shared())

    def _blank(self, width: int, row: int) -> Image.Image:
        """A sheet of rows of that height with the title to the left of each."""
        sheet = Image.new("RGB", (width, row * len(self.request.inputs)), "white")
        draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
        for k, title in enumerate(self.request.titles):
            label = fill(title, width=28, max_lines=6, placeholder=" ...")
            draw.multiline_text((8, k * row + row // 2), label, fill="black", font=font, anchor="lm")
        return sheet

    def finish(self) -> list[Path]:
        """Write the sampling path; return the files to report."""
        frames = [torch.cat(parts) for parts in zip(*self._path, strict=True)]
        return [self.out, *(_save_path(self.out, frames) if frames else [])]


def _save_path(file: Path, path: list[Tensor]) -> list[Path]:
    """Write, beside the file, a strip with one row of up to FRAMES frames per image, and an animation of all frames."""
    scale = max(1, IMAGE_WIDTH // path[0].shape[-1])
    frames = [path[k] for k in evenly_spaced(len(path), FRAMES)]
    strip, animation = (file.with_name(f"{file.stem}-path{ending}") for ending in (".png", ".gif"))
    save_image(grid(torch.stack(frames, dim=1).flatten(0, 1), columns=len(frames), gap=1), strip, scale)
    save_animation([grid(frame, gap=1) for frame in path], animation, scale)
    return [strip, animation]
