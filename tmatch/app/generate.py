"""`tmatch generate`."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import tyro

from tmatch.app.images_out import Folder, Request, Sheet
from tmatch.app.sampling_options import DEFAULT_MODEL, SAMPLING_OPTIONS, SamplingOptions
from tmatch.conditioning.base import shortened
from tmatch.config import MAX_COUNT, printable
from tmatch.data.shapes import SIZE
from tmatch.eval.shapes import detect, satisfies
from tmatch.generation import GeneratedImages
from tmatch.generation.config import SamplingConfig
from tmatch.generation.inputs import COMMAND_LINE, Inputs
from tmatch.hub import fingerprint
from tmatch.runs import MODELS, LoadedModel, load_model
from tmatch.runs.load import HUB
from tmatch.tensors import positive_int


def main(
    prompts: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PROMPT ...", help_behavior_hint="")
    ] = (),
    /,
    *,
    model: str = DEFAULT_MODEL,
    labels: Annotated[tuple[str, ...], tyro.conf.arg(name="class", metavar="CLASS ...")] = (),
    unconditional: bool = False,
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
    """Generate images from prompts, of classes, or unconditionally, as the model was trained.

    Args:
        prompts: the prompts, each in quotes: "a red circle and a blue square".
        labels: classes by index or name, for a model that was trained on class labels.
        unconditional: generate without a prompt or class; a model that was trained without them does so by default.
        model: a model of `tmatch models`, the folder of a run, or hf:owner/name on the Hub.
        prompt_file: text file with one prompt per line, used after the prompts given here.
        images: number of images per prompt or class.
        sampling: where and how to sample; None uses the model's own setting.
        negative: prompt or class to guide away from.
        height: height of the images in pixels; by default the size most training images have.
        width: width of the images in pixels.
        seed: seed of the first image; each further image uses the next one.
        batch_size: images generated at once. An image depends on it only by rounding: in float32 on a CPU, by at most
            one of 256 levels in a few pixels, and only between batches of which one has fewer than 8 images.
        out: a folder with one file per image, which a rerun completes, or a .png file for one sheet of all images.
        path: also write the sampling path as a strip (-path.png) and an animation (-path.gif).
    """
    loaded = _image_model(model)
    asked = Inputs(_prompts(prompts, prompt_file), labels, unconditional, negative)
    kind, inputs = asked.resolve(loaded.pipeline.encoder, COMMAND_LINE)
    config = sampling.apply(loaded, unconditional)
    how = {"negative": negative, "height": height, "width": width, "precision": sampling.precision}
    settings = {**_identity(model, loaded), **how, "path": path, **config.model_dump(mode="json", exclude_none=True)}
    request = Request(kind, inputs, positive_int("The number of images per prompt", images), seed, settings)
    for warning in loaded.pipeline.prompt_warnings([*inputs, negative], height, width):
        print(f"tmatch: {printable(warning)}", file=sys.stderr)
    _generate(loaded, request, _output(out)(out, request), positive_int("The batch size", batch_size), config,
              progress=sys.stderr.isatty(), keep_path=path, **how)  # fmt: skip


def _image_model(name: str) -> LoadedModel:
    """A model that does not generate latents."""
    model = load_model(name)
    if model.pipeline.codec.latent:
        raise ValueError(f"{name} generates latents, not images: use tmatch.Pipeline, and decode them in Python.")
    return model


def _identity(name: str, model: LoadedModel) -> dict[str, str]:
    """The name of a model without the path to it, and a digest of its weights."""
    name = name if name in MODELS or name.startswith(HUB) else Path(name).name
    return {"model": name, "weights": fingerprint(model.pipeline.trained())[:16]}


def _generate(
    loaded: LoadedModel, request: Request, output: Folder | Sheet, size: int, config: SamplingConfig,
    **how: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Generate the images that are missing, batch by batch; write each batch before it is reported."""
    seconds, seeds = 0.0, request.seeds
    for part in (range(len(seeds))[first : first + size] for first in range(0, len(seeds), size)):
        if output.complete(part):
            continue
        inputs = [request.input(k) for k in part]
        result = loaded.pipeline.generate(inputs, seeds[part.start : part.stop], config, batch_size=len(part), **how)
        output.write(part, result)
        _report(request, part, result, "captions" in loaded.config.run.data.metrics)
        seconds, calls = seconds + result.seconds, result.evaluations
    if seconds:
        print(f"{calls.backbone} backbone and {calls.head} head evaluations per image, {seconds:.1f} s in total")
    for file in map(printable, map(str, output.finish())):
        print(f"wrote {file}" if seconds else f"{file} is complete already")


def _prompts(prompts: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    """All prompts, from the command line and from a file."""
    try:
        text = "" if file is None else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a UTF-8 text file; write one prompt per line.") from error
    texts = (*prompts, *(line.strip() for line in text.splitlines() if line.strip()))
    if len(texts) > MAX_COUNT:
        raise ValueError(f"Give at most {MAX_COUNT:,} prompts.")
    return texts


def _output(out: Path) -> type[Folder] | type[Sheet]:
    """What the path names, by its suffix."""
    if out.suffix.lower() in (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"):
        raise ValueError(f"Images are written as PNG; use --out {out.with_suffix('.png')}, or a folder.")
    return Sheet if out.suffix.lower() == ".png" else Folder


def _report(request: Request, part: range, result: GeneratedImages, shapes: bool) -> None:
    """Print a line per image; those of shapes at the trained size are checked."""
    found = detect(result.images) if shapes and result.images.shape[-2:] == (SIZE, SIZE) else [None] * len(part)
    for k, objects in zip(part, found, strict=True):
        title, verdict = request.title(k), ""
        with suppress(ValueError):  # the prompt is not a caption of shapes
            if objects is not None:
                correct = satisfies(objects, " ".join(title.lower().split()))
                verdict = "  [ok]" if correct else "  [prompt not satisfied]"
        print(f"seed {request.seeds[k]}  {printable(shortened(title))}{verdict}")
