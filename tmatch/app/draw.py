"""`tmatch generate` and `tmatch evaluate`."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from tmatch.conditioning.base import shortened
from tmatch.data.images import grid, save_animation, save_image
from tmatch.data.shapes import SIZE
from tmatch.distribution import Categorical
from tmatch.eval.captions import wilson_interval
from tmatch.eval.evaluate import evaluate as run_metrics
from tmatch.eval.shapes import detect, satisfies, skill_of
from tmatch.files import write_text
from tmatch.generation import GeneratedImages, TextToImage, compile_for_sampling
from tmatch.generation.frames import evenly_spaced
from tmatch.generation.text_to_image import require_prompts
from tmatch.kernel import Kernel, MaskedTokens
from tmatch.recipes import load_model
from tmatch.runs.base import SamplingSettings
from tmatch.runs.settings import Split
from tmatch.solver import SOLVERS
from tmatch.tensors import Device, Precision, positive_int, resolve_device

FRAMES = 13  # of a strip
DEFAULT_MODEL = "shapes-dtm-from-fm"


@dataclass(frozen=True)
class How:
    """How to sample; what is not given is the model's own."""

    steps: int | None = None
    """transitions"""
    head_steps: int | None = None
    """solver steps of the head in each transition"""
    guidance: float | None = None
    """1 is none, more follows the prompt more closely"""
    schedule: Literal["constant", "rising", "falling"] | None = None
    """of the guidance, over the time"""
    iterations: int | None = None
    """mask iterations, of masked variants"""
    order: Literal["random", "raster", "confidence"] | None = None
    """in which masked variants draw tokens"""
    confidence_temperature: float | None = None
    """of the noise on the confidence, for that order"""
    temperature: float | None = None
    """of codes; 0 takes the likeliest"""
    top_k: int | None = None
    """draw from so many of the likeliest codes"""
    top_p: float | None = None
    """draw from the likeliest codes of this probability"""
    device: Device = "auto"
    """where to compute; 'auto' takes the accelerator if there is one"""
    precision: Precision = "float32"
    """of matrix products; tf32 and bfloat16 are faster on a GPU, and round by the batch"""
    compile: bool = False
    """compile the networks first, a minute or more: for many images"""

    def ready(self, pipeline: TextToImage) -> TextToImage:
        """The pipeline in its place, compiled or not."""
        pipeline.to(resolve_device(self.device))
        if self.compile:
            compile_for_sampling(pipeline.model)
        return pipeline

    def settings(self, own: SamplingSettings) -> SamplingSettings:
        """What was asked for, and the model's own for the rest."""
        asked = {key: getattr(self, key) for key in SamplingSettings.model_fields}
        given = {key: value for key, value in asked.items() if value is not None}
        return own.model_copy(update=given)  # the library itself says best what is wrong with it

    def prompt_warnings(self, kernel: Kernel, solver: str = "euler") -> list[str]:
        """On options that were given and change nothing, for the model lacks what they are for."""
        parts = {
            "head": (kernel.head is not None, ("head_steps", "solver")),
            "masks": (isinstance(kernel, MaskedTokens), ("iterations", "order", "confidence_temperature")),
            "codes": (
                isinstance(getattr(kernel, "distribution", None), Categorical),
                ("temperature", "top_k", "top_p"),
            ),
        }
        given = {**vars(self), "solver": None if solver == "euler" else solver}
        return [
            f"the model has no {part}, so --{option.replace('_', '-')} changes nothing."
            for part, (there, options) in parts.items()
            for option in options
            if not there and given[option] is not None
        ]


Flat = Annotated[How, tyro.conf.arg(name="")]


def generate(
    prompts: tyro.conf.Positional[tuple[str, ...]] = (),
    /,
    *,
    model: str = DEFAULT_MODEL,
    prompt_file: Path | None = None,
    images: int = 1,
    how: Flat = How(),
    solver: Literal["euler", "midpoint", "heun", "rk4"] = "euler",
    negative: str = "",
    height: int | None = None,
    width: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    out: Path = Path("out.png"),
    path: bool = False,
) -> None:
    """Draw images of prompts.

    Args:
        prompts: what to draw, each in quotes: "a red circle and a blue square".
        model: one that comes with the package, the folder of a run, or hf:owner/name, one of the hub.
        prompt_file: a text file with a prompt a line, drawn after those given here.
        images: how many images of each prompt.
        how: how to sample.
        solver: of the head's equation.
        negative: a prompt to push away from.
        height: of the images, in pixels; by default that of most images the model was trained on.
        width: of the images, as the height.
        seed: of the first image; the next have the next seeds.
        batch_size: images drawn at once; in float32 no image depends on it.
        out: a .png file for all images side by side, or a folder for a file each.
        path: also write how the images came about, as a strip (-path.png) and as an animation (-path.gif).
    """
    each = _each(prompts, prompt_file, images)
    require_prompts(*each, negative)
    _require_writable(out)
    pipeline, recipe = load_model(model)
    arguments = how.settings(recipe.sampling).arguments(SOLVERS[solver])  # refused before anything is remarked on
    _remark(
        [
            *pipeline.prompt_warnings([*each, negative], height, width),
            *how.prompt_warnings(pipeline.model.kernel, solver),
        ]
    )
    seeds = range(seed, seed + len(each))
    drawn = how.ready(pipeline).generate(
        each, seeds, **arguments, negative=negative, height=height, width=width,
        batch_size=batch_size, progress=sys.stderr.isatty(), keep_path=path, precision=how.precision,
    )  # fmt: skip
    _tell(each, seeds, drawn, recipe.eval_prompts(1) is not None)
    _write(out, each, seeds, drawn)
    if path:
        _write_path(out, drawn)


def _remark(prompt_warnings: Iterable[str]) -> None:
    for remark in prompt_warnings:
        print(f"tmatch: {remark}", file=sys.stderr)


def _each(prompts: tuple[str, ...], file: Path | None, images: int) -> list[str]:
    """The prompt of every image."""
    texts = [*prompts, *(() if file is None else _lines(file))]
    each = [text for text in texts for _ in range(positive_int("The number of images of a prompt", images))]
    if not each:
        raise ValueError("Give a prompt to draw, such as: tmatch generate 'a red circle and a blue square'.")
    return each


def _lines(path: Path) -> list[str]:
    """The prompts of a file."""
    if not path.is_file():
        raise ValueError(f"There is no file {path} to take prompts from.")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file; write a prompt a line, in UTF-8.") from error
    if not lines:
        raise ValueError(f"{path} has no prompts; write one a line.")
    return lines


def _require_writable(out: Path) -> None:
    """Refuse a place that cannot be written before any work is done."""
    if out.suffix.lower() in (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"):
        raise ValueError(f"Images are written as PNG; call it {out.with_suffix('.png')}, or give a folder.")
    folder = out.parent if out.suffix.lower() == ".png" else out
    folder.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".png" and out.is_dir():
        raise ValueError(f"{out} is a folder; give a file name that ends in .png, or a folder without that ending.")
    if folder == out and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give a new folder, so that nothing in it is lost.")
    probe = folder / ".tmatch-writing"
    probe.touch()
    probe.unlink()


def verdicts(prompts: list[str], drawn: GeneratedImages) -> list[str]:
    """What the exact checker says of images of shapes; nothing of prompts that are no caption of them."""
    said = []
    for prompt, objects in zip(prompts, detect(drawn.images), strict=True):
        try:
            said.append("as asked" if satisfies(objects, " ".join(prompt.lower().split())) else "not as asked")
        except ValueError:
            said.append("")
    return said


def _tell(prompts: list[str], seeds: range, drawn: GeneratedImages, shapes: bool) -> None:
    readable = shapes and drawn.images.shape[-2:] == (SIZE, SIZE)
    said = verdicts(prompts, drawn) if readable else [""] * len(prompts)
    for prompt, seed, verdict in zip(prompts, seeds, said, strict=True):
        print(f"seed {seed}  {shortened(prompt)}" + (f"  [{verdict}]" if verdict else ""))
    calls = drawn.evaluations
    print(f"{calls.backbone} backbone and {calls.head} head evaluations an image, {drawn.seconds:.1f} s in all")


def _write(out: Path, prompts: list[str], seeds: range, drawn: GeneratedImages) -> None:
    scale = max(1, 256 // drawn.images.shape[-1])
    if out.suffix.lower() == ".png":
        one = len(drawn.images) == 1
        save_image(drawn.images[0] if one else grid(drawn.images, gap=1), out, scale)
    else:
        rows = []
        for prompt, seed, image in zip(prompts, seeds, drawn.images, strict=True):
            save_image(image, out / f"{seed:06d}.png")
            rows.append({"file_name": f"{seed:06d}.png", "text": prompt, "seed": seed})
        write_text(out / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    print(f"wrote {out}")


def _write_path(out: Path, drawn: GeneratedImages) -> None:
    """A row an image of up to FRAMES moments; and all of them one after the other."""
    name = out.with_suffix("") if out.suffix.lower() == ".png" else out / out.name
    scale = max(1, 128 // drawn.images.shape[-1])
    chosen = [drawn.path[k] for k in evenly_spaced(len(drawn.path), FRAMES)]
    strip = torch.stack(chosen, dim=1).flatten(0, 1)
    for ending, write in (
        (".png", lambda file: save_image(grid(strip, columns=len(chosen), gap=1), file, scale)),
        (".gif", lambda file: save_animation([grid(frame, gap=1) for frame in drawn.path], file, scale)),
    ):
        file = name.with_name(f"{name.name}-path{ending}")
        write(file)
        print(f"wrote {file}")


def evaluate(
    *,
    model: str = DEFAULT_MODEL,
    prompts: int = 1000,
    split: Split = "test",
    metrics: tuple[str, ...] = ("captions",),
    how: Flat = How(),
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Measure how many captions of `shapes` a model satisfies, by the exact checker.

    Args:
        model: one that comes with the package, or the folder of a run.
        prompts: how many; the images that they describe and the noise were not trained on.
        split: the test captions, those to choose settings by, or sentences withheld from training.
        metrics: names of metrics to compute.
        how: how to sample.
        json_output: print JSON instead of a table.
    """
    positive_int("The number of prompts", prompts)
    pipeline, recipe = load_model(model)
    images = recipe.eval_prompts(prompts, split)
    if images is None:
        raise ValueError(f"{model} was trained on other images; the checker reads images of `shapes` only.")
    settings = how.settings(recipe.sampling)
    arguments = settings.arguments()
    _remark(how.prompt_warnings(pipeline.model.kernel))
    result = run_metrics(
        how.ready(pipeline), images.captions, images, metrics, arguments,
        progress=sys.stderr.isatty(), precision=how.precision,
    )  # fmt: skip
    if json_output:
        asked = {**settings.model_dump(exclude_none=True), "precision": how.precision}
        print(json.dumps({"model": model, "split": split, **asked, **result}, indent=2))
        return
    if "skills" in result:
        _print_skills(result, [skill_of(caption) for caption in images.captions])
    for name, value in result.items():
        print(f"{name}: {value}")


def _print_skills(result: dict[str, Any], skills: list[str]) -> None:
    """The table of the `captions` metric, whose entries are removed from the result."""
    table = Table("skill", "satisfied", "95% interval")
    for skill, share in result.pop("skills").items():
        low, high = wilson_interval(round(share * skills.count(skill)), skills.count(skill))
        table.add_row(skill, f"{share:.3f}", f"{low:.3f} - {high:.3f}")
    share, (low, high) = result.pop("captions_satisfied"), result.pop("interval_95")
    table.add_row(f"all, {result.pop('prompts')} prompts", f"{share:.3f}", f"{low:.3f} - {high:.3f}")
    Console().print(table)
