"""`tmatch generate`."""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Annotated

import torch
import tyro
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tmatch.app.sampling_options import DEFAULT_MODEL, SAMPLING_OPTIONS, SamplingOptions
from tmatch.conditioning.base import shortened
from tmatch.data.images import grid, save_animation, save_image, to_image
from tmatch.data.shapes import SIZE
from tmatch.eval.shapes import detect, satisfies
from tmatch.files import atomic_write, write_text
from tmatch.generation import GeneratedImages
from tmatch.generation.frames import evenly_spaced
from tmatch.generation.text_to_image import require_prompts
from tmatch.runs import load_model
from tmatch.tensors import positive_int

FRAMES = 13
"""Frames of a path strip."""
PER_LINE, LABEL_WIDTH, IMAGE_WIDTH = 8, 240, 128
"""Of a sheet: images per line, and widths in pixels of a label and to which small images are enlarged."""


def main(
    prompts: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PROMPT ...", help_behavior_hint="")
    ] = (),
    /,
    *,
    model: str = DEFAULT_MODEL,
    prompt_file: Path | None = None,
    images: int = 1,
    sampling: SamplingOptions = SAMPLING_OPTIONS,
    negative: str = "",
    height: int | None = None,
    width: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    out: Path = Path("out.png"),
    path: bool = False,
) -> None:
    """Generate images from prompts.

    Args:
        prompts: the prompts, each in quotes: "a red circle and a blue square".
        model: a model of `tmatch models`, the folder of a run, or hf:owner/name on the Hub.
        prompt_file: text file with one prompt per line, used after the prompts given here.
        images: number of images per prompt.
        sampling: where and how to sample; None uses the model's own setting.
        negative: prompt to guide away from.
        height: height of the images in pixels; by default the size most training images have.
        width: width of the images in pixels.
        seed: seed of the first image; each further image uses the next one.
        batch_size: images generated at once; in float32 the images do not depend on it.
        out: a .png file for one sheet of all images, or a folder for one file per image.
        path: also write the sampling path as a strip (-path.png) and an animation (-path.gif).
    """
    loaded = load_model(model)
    pipeline, run = loaded.pipeline, loaded.config.run
    texts = _prompts(prompts, prompt_file) if pipeline.encoder.width is not None else [""]
    each = [text for text in texts for _ in range(positive_int("The number of images per prompt", images))]
    require_prompts(*each, negative)
    _require_writable(out)
    config = sampling.apply(pipeline, run.sampling)
    for warning in pipeline.prompt_warnings([*each, negative], height, width):
        print(f"tmatch: {warning}", file=sys.stderr)
    seeds = range(seed, seed + len(each))
    result = pipeline.generate(
        each, seeds, config, negative=negative, height=height, width=width,
        batch_size=batch_size, progress=sys.stderr.isatty(), keep_path=path, precision=sampling.precision,
    )  # fmt: skip
    _report(each, seeds, result, "captions" in run.data.metrics)
    _write(out, texts, each, seeds, result)


def _prompts(prompts: tuple[str, ...], file: Path | None) -> list[str]:
    """All prompts, from the command line and from a file."""
    try:
        text = "" if file is None else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a UTF-8 text file; write one prompt per line.") from error
    texts = [*prompts, *(line.strip() for line in text.splitlines() if line.strip())]
    if not texts:
        raise ValueError("Give a prompt, for example: tmatch generate 'a red circle and a blue square'.")
    return texts


def _require_writable(out: Path) -> None:
    """Reject an output path that cannot be written before any work is done."""
    if out.suffix.lower() in (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"):
        raise ValueError(f"Images are written as PNG; use --out {out.with_suffix('.png')}, or a folder.")
    folder = out.parent if out.suffix.lower() == ".png" else out
    folder.mkdir(parents=True, exist_ok=True)
    if folder == out and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give a new folder, so that nothing in it is overwritten.")


def _report(prompts: Sequence[str], seeds: range, result: GeneratedImages, shapes: bool) -> None:
    found = detect(result.images) if shapes and result.images.shape[-2:] == (SIZE, SIZE) else [None] * len(prompts)
    for prompt, seed, objects in zip(prompts, seeds, found, strict=True):
        verdict = ""
        with suppress(ValueError):  # the prompt is not a caption of shapes
            if objects is not None:
                correct = satisfies(objects, " ".join(prompt.lower().split()))
                verdict = "  [ok]" if correct else "  [prompt not satisfied]"
        print(f"seed {seed}  {shortened(prompt)}{verdict}")
    calls = result.evaluations
    print(f"{calls.backbone} backbone and {calls.head} head evaluations per image, {result.seconds:.1f} s in total")


def _write(out: Path, texts: list[str], each: list[str], seeds: range, result: GeneratedImages) -> None:
    """One image, a sheet with one labelled row per prompt, or a folder with one file per image; and the path."""
    images = result.images
    if out.suffix.lower() != ".png":
        rows = []
        for prompt, seed, image in zip(each, seeds, images, strict=True):
            save_image(image, out / f"{seed:06d}.png")
            rows.append({"file_name": f"{seed:06d}.png", "text": prompt, "seed": seed})
        write_text(out / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    elif len(images) == 1:
        save_image(images[0], out, max(1, 256 // images.shape[-1]))
    else:
        _save_sheet(images, texts, out)
    print(f"wrote {out}")
    if result.path:
        _write_path(out, result)


def _save_sheet(images: Tensor, prompts: Sequence[str], path: Path) -> None:
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


def _write_path(out: Path, result: GeneratedImages) -> None:
    """A strip with one row of up to FRAMES frames per image, and an animation of all frames."""
    name = out.with_suffix("") if out.suffix.lower() == ".png" else out / out.name
    scale = max(1, IMAGE_WIDTH // result.images.shape[-1])
    frames = [result.path[k] for k in evenly_spaced(len(result.path), FRAMES)]
    strip, animation = (name.with_name(f"{name.name}-path{ending}") for ending in (".png", ".gif"))
    save_image(grid(torch.stack(frames, dim=1).flatten(0, 1), columns=len(frames), gap=1), strip, scale)
    save_animation([grid(frame, gap=1) for frame in result.path], animation, scale)
    print(f"wrote {strip}\nwrote {animation}")
