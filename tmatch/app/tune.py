"""`tmatch tune`."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tmatch import __version__
from tmatch.app.evaluate import evaluation_set
from tmatch.app.sampling_options import COMPUTE_OPTIONS, ComputeOptions
from tmatch.app.tables import JsonFlag
from tmatch.config import MAX_SAMPLING_STEPS, lookup
from tmatch.data import CaptionedImages
from tmatch.eval import METRICS
from tmatch.eval.tune import FRESH, SEARCH, Tuner
from tmatch.files import cache_folder, locked, write_text
from tmatch.generation.config import SamplingConfig
from tmatch.generation.presets import PRESETS, PresetName, Presets
from tmatch.hub import fingerprint
from tmatch.runs import LoadedModel, load_model
from tmatch.runs.load import HUB
from tmatch.tensors import Precision, positive_int

_SHOWN = ("steps", "sampler", "guidance")  # even if they have their default


def main(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    *,
    metric: str | None = None,
    prompts: int = 50,
    fast: int = 8,
    balanced: int = 32,
    best: int = 64,
    data: Path | None = None,
    compute: Annotated[ComputeOptions, tyro.conf.arg(name="")] = COMPUTE_OPTIONS,
    as_json: JsonFlag = False,
) -> None:
    """Choose the presets of a model, `fast`, `balanced` and `best`; rerun the same command to resume.

    Sampler, guidance, head steps and so on are varied one at a time, starting from the model's own settings, and
    compared by a metric on validation prompts: many choices on a few, the best ones on four times as many. The best of
    all are measured again on eight times as many fresh prompts. The presets are stored in the model's folder, and
    `balanced` becomes its default.

    Args:
        model: a model of `tmatch models`, or the folder of a finished run or of an export.
        metric: a row of METRICS, such as captions; by default that of the data set the model was trained on, or energy
            if it has none.
        prompts: number of validation prompts that all settings are compared on.
        fast: backbone evaluations per image, and head evaluations for each of these, at most. A model whose number of
            backbone evaluations is fixed keeps it.
        balanced: the same for `balanced`.
        best: the same for `best`.
        data: folder of the images a model was trained on, if it has moved or the model is an export.
        compute: where and how the networks run.
    """
    numbers: dict[PresetName, int] = {"fast": fast, "balanced": balanced, "best": best}
    budgets = {name: positive_int(f"--{name}", number, MAX_SAMPLING_STEPS) for name, number in numbers.items()}
    if sorted(budgets.values()) != [*budgets.values()]:
        raise ValueError("The budgets must ascend: --fast, --balanced, --best.")
    positive_int("The number of prompts", prompts)
    loaded = load_model(model)
    _require_writable(model, loaded)
    given = () if metric is None else (metric,)
    source, count = loaded.config.run.data.at(data), (SEARCH + FRESH) * prompts
    images, metrics = evaluation_set(loaded, source, given, count, "validation")
    lookup("metric", METRICS, metrics[0])
    compute.prepare(loaded.pipeline)
    print(f"tmatch: tuning {metrics[0]} on up to {count:,} prompts; rerun the command to resume", file=sys.stderr)
    reference = source.eval_reference("validation")
    found = _tune(loaded, images, reference, metrics[0], prompts, budgets, compute.precision)
    text = found.model_dump_json(indent=2)
    write_text(loaded.folder / PRESETS, f"{text}\n")
    print(text) if as_json else _print(found)
    print(f"tmatch: wrote {loaded.folder / PRESETS}; --preset chooses one", file=sys.stderr)


def _require_writable(model: str, loaded: LoadedModel) -> None:
    """Raise where presets could not be stored, or would soon be out of date."""
    if model.startswith(HUB):
        raise ValueError(f"{model} is on the Hub; `tmatch export {model} --out DIR` first, then tune DIR.")
    if not (loaded.folder / "model.safetensors").is_file():
        raise ValueError(f"The run in {loaded.folder} is not finished; rerun its `tmatch train` first.")
    if not os.access(loaded.folder, os.W_OK):
        raise ValueError(f"{loaded.folder} is not writable; `tmatch export` the model, then tune the export.")


def _tune(
    model: LoadedModel, images: CaptionedImages, reference: CaptionedImages | None, metric: str, prompts: int,
    budgets: Mapping[PresetName, int], precision: Precision,
) -> Presets:  # fmt: skip
    """The presets; measurements are kept in the cache, in a folder for everything they depend on but the settings."""
    pipeline = model.pipeline
    device = next(pipeline.model.parameters()).device.type
    real = None if reference is None else reference.fingerprint()
    asked = (images.fingerprint(), list(images.captions))
    same = (__version__, model.config, metric, prompts, asked, real, device, precision)
    folder = cache_folder() / "tune" / fingerprint(pipeline.trained(), repr(same))[:32]
    with locked(folder):
        tuner = Tuner(
            pipeline, images.captions, reference, metric, prompts,
            folder / "measurements.jsonl", precision=precision, progress=sys.stderr.isatty(),
        )  # fmt: skip
        presets = tuner.choose(model.config.run.sampling, budgets)
    return Presets(metric=metric, prompts=FRESH * prompts, presets=presets)


def _print(found: Presets) -> None:
    table = Table("preset", found.metric, "backbone", "head", "ms per image", "settings")
    for name, preset in found.presets.items():
        shown = {
            key: value for key, value in preset.sampling if key in _SHOWN or value != getattr(SamplingConfig(), key)
        }
        settings = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in shown.items() if value is not None)
        numbers = (preset.backbone_evaluations, preset.head_evaluations)
        table.add_row(name, f"{preset.score:.4g}", *map(str, numbers), f"{preset.ms_per_image:.1f}", settings)
    Console().print(table)
