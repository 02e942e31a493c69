"""`tmatch generate`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import tyro

from tmatch.app.parse import call
from tmatch.app.sampling_options import (
    DEFAULT_MODEL,
    SAMPLING_OPTIONS,
    ComputeOptions,
    FlatComputeOptions,
    SamplingOptions,
    sampling_config,
)
from tmatch.app.sheet import save_sheet
from tmatch.conditioning.base import shortened
from tmatch.data.images import grid, save_animation, save_image
from tmatch.data.shapes import SIZE
from tmatch.eval.shapes import detect, satisfies
from tmatch.files import write_text
from tmatch.generation import GeneratedImages
from tmatch.generation.frames import evenly_spaced
from tmatch.generation.text_to_image import require_prompts
from tmatch.runs import load_model
from tmatch.tensors import positive_int

FRAMES = 13
"""Frames of a path strip."""


def main(arguments: Sequence[str]) -> None:
    """Parse and run."""
    call("generate", _generate, arguments)


def _generate(
    prompts: tyro.conf.Positional[tuple[str, ...]] = (),
    /,
    *,
    model: str = DEFAULT_MODEL,
    prompt_file: Path | None = None,
    images: int = 1,
    sampling: SamplingOptions = SAMPLING_OPTIONS,
    compute: FlatComputeOptions = ComputeOptions(),
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
        sampling: how to sample; None uses the model's own setting.
        compute: where and how the networks run.
        negative: prompt to guide away from.
        height: height of the images in pixels; by default the size most training images have.
        width: width of the images in pixels.
        seed: seed of the first image; each further image uses the next one.
        batch_size: images generated at once; in float32 the images do not depend on it.
        out: a .png file for one sheet of all images, or a folder for one file per image.
        path: also write the sampling path as a strip (-path.png) and an animation (-path.gif).
    """
    texts = _prompts(prompts, prompt_file)
    each = [text for text in texts for _ in range(positive_int("The number of images per prompt", images))]
    require_prompts(*each, negative)
    _require_writable(out)
    loaded = load_model(model)
    pipeline, run = loaded.pipeline, loaded.config.run
    config = sampling_config(sampling, pipeline, run.sampling)
    for warning in pipeline.prompt_warnings([*each, negative], height, width):
        print(f"tmatch: {warning}", file=sys.stderr)
    seeds = range(seed, seed + len(each))
    result = compute.prepare(pipeline).generate(
        each, seeds, config, negative=negative, height=height, width=width,
        batch_size=batch_size, progress=sys.stderr.isatty(), keep_path=path, precision=compute.precision,
    )  # fmt: skip
    _report(each, seeds, result, "captions" in run.data.metrics)
    _write(out, texts, each, seeds, result)


def _prompts(prompts: tuple[str, ...], file: Path | None) -> list[str]:
    """All prompts, from the command line and from a file."""
    texts = [*prompts, *(() if file is None else _lines(file))]
    if not texts:
        raise ValueError("Give a prompt, for example: tmatch generate 'a red circle and a blue square'.")
    return texts


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"There is no prompt file {path}.")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a UTF-8 text file; write one prompt per line.") from error
    if not lines:
        raise ValueError(f"{path} has no prompts; write one per line.")
    return lines


def _require_writable(out: Path) -> None:
    """Reject an output path that cannot be written before any work is done."""
    if out.suffix.lower() in (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"):
        raise ValueError(f"Images are written as PNG; use --out {out.with_suffix('.png')}, or a folder.")
    folder = out.parent if out.suffix.lower() == ".png" else out
    folder.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".png" and out.is_dir():
        raise ValueError(f"{out} is a folder; give a file name that ends in .png, or a folder without that ending.")
    if folder == out and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give a new folder, so that nothing in it is overwritten.")
    probe = folder / ".tmatch-writing"
    probe.touch()
    probe.unlink()


def _verdicts(prompts: Sequence[str], result: GeneratedImages) -> list[str]:
    """What the exact checker finds in images of shapes; "" for prompts that are not captions of shapes."""
    verdicts = []
    for prompt, objects in zip(prompts, detect(result.images), strict=True):
        try:
            verdicts.append("ok" if satisfies(objects, " ".join(prompt.lower().split())) else "prompt not satisfied")
        except ValueError:
            verdicts.append("")
    return verdicts


def _report(prompts: Sequence[str], seeds: range, result: GeneratedImages, shapes: bool) -> None:
    checkable = shapes and result.images.shape[-2:] == (SIZE, SIZE)
    verdicts = _verdicts(prompts, result) if checkable else [""] * len(prompts)
    for prompt, seed, verdict in zip(prompts, seeds, verdicts, strict=True):
        print(f"seed {seed}  {shortened(prompt)}" + (f"  [{verdict}]" if verdict else ""))
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
        save_sheet(images, texts, out)
    print(f"wrote {out}")
    if result.path:
        _write_path(out, result)


def _write_path(out: Path, result: GeneratedImages) -> None:
    """A strip with one row of up to FRAMES frames per image, and an animation of all frames."""
    name = out.with_suffix("") if out.suffix.lower() == ".png" else out / out.name
    scale = max(1, 128 // result.images.shape[-1])
    frames = [result.path[k] for k in evenly_spaced(len(result.path), FRAMES)]
    strip, animation = (name.with_name(f"{name.name}-path{ending}") for ending in (".png", ".gif"))
    save_image(grid(torch.stack(frames, dim=1).flatten(0, 1), columns=len(frames), gap=1), strip, scale)
    save_animation([grid(frame, gap=1) for frame in result.path], animation, scale)
    print(f"wrote {strip}\nwrote {animation}")
