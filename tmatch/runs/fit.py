"""Training a generator from a `RunConfig`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tmatch.codec import Patchify
from tmatch.data.images import grid
from tmatch.datasets import Dataset, OpenContext
from tmatch.eval.evaluate import evaluate
from tmatch.files import write_tensors, write_text
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig, require_applicable
from tmatch.generation.presets import PRESETS
from tmatch.rng import seeded_init
from tmatch.runs.config import ModelConfig, RunConfig
from tmatch.runs.finetune import apply_init, matching_names
from tmatch.runs.load import merge_lora, read_config
from tmatch.sampler import build_sampler
from tmatch.train import GeneratorTask, Task, Trainer, checkpoint
from tmatch.train.launch import init_distributed
from tmatch.train.resume import require_resumable


def fit_generator(run: RunConfig, out: Path, progress: bool = False) -> dict[str, Any]:
    """Train, or resume the run in `out`; then write the averaged weights and evaluate them."""
    preflight_generator(run, out)
    architecture = _architecture(run, out)
    trainer, dataset = build_trainer(run, out, progress, architecture)
    distributed = trainer.distributed
    trainer.resume()
    if distributed.rank == 0:
        if trainer.step:
            print(f"tmatch: resuming at step {trainer.step:,}", file=sys.stderr)
        config = ModelConfig(
            run=run, shape=dataset.shape, grids=dataset.grids, encoders=dataset.encoders, architecture=architecture
        )
        write_text(out / "model.json", config.model_dump_json(indent=2) + "\n")
        if trainer.step < run.train.steps:  # results of an earlier, shorter run are out of date
            for name in ("model.safetensors", "result.json", PRESETS):
                (out / name).unlink(missing_ok=True)
    trainer.run(progress=progress)
    average = distributed.gather(trainer.ema)
    weights = {} if average is None else merge_lora(average.state_dict())
    trainer.require_finite(weights.values())
    if average is not None:
        write_tensors(out / "model.safetensors", weights)
        distributed.to_device(average)
    distributed.drain()  # the other ranks end here, while rank 0 evaluates
    if average is None:
        return {}
    assert isinstance(average, GeneratorTask)
    return _finish(run, dataset, average, out, progress)


def preflight_generator(run: RunConfig, out: Path) -> None:
    """Raise whatever a run would raise about its folder, data and networks; no network is allocated."""
    require_resumable(out, run)
    run.train.resolve_device()
    if checkpoint.latest(out) is not None:
        return
    shapes = run.input_shapes()
    with torch.device("meta"):
        model = run.network(shapes.shape, shapes.text[1], shapes.codebook_size)
        matching_names(run.init, model)
    default = SamplingConfig()
    changed = [name for name, value in run.sampling if value != getattr(default, name)]
    require_applicable(model.kernel, run.sampling, changed, "--sampling.")
    model.check_sampler(build_sampler(run.sampling.sampler))
    run.data.require_available()


def _architecture(run: RunConfig, out: Path) -> dict[str, Any] | None:
    """The configuration of a language model; a resumed run has its own."""
    return run.backbone.architecture() if checkpoint.latest(out) is None else read_config(str(out))[1].architecture


def build_trainer(
    run: RunConfig, out: Path, progress: bool = False, architecture: dict[str, Any] | None = None
) -> tuple[Trainer, Dataset]:
    """The trainer of a run in `out`, and the opened data; `architecture` is that of a language model."""
    distributed = init_distributed(run.train)
    context = OpenContext(
        Patchify(run.patch), run.train, out, run.autoencoder, run.text, run.validation_images, distributed, progress
    )
    dataset = run.data.open(context)
    with seeded_init(run.train.seed):
        conditioner = dataset.build_conditioner()
        model = run.network(dataset.shape, conditioner.width, dataset.codebook_size, architecture)
    task = GeneratorTask(model, conditioner, dataset.train, dataset.validation, run.caption_dropout)
    apply_init(run, task, dataset.encoders, out)

    def preview(task: Task) -> Tensor:
        assert isinstance(task, GeneratorTask)
        return grid(_pipeline(dataset, task).generate(dataset.previews, seeds, run.sampling).images)

    seeds = range(len(dataset.previews))
    return Trainer(task, run.train, out, run, preview, dataset.fingerprint, distributed), dataset


def _pipeline(dataset: Dataset, task: GeneratorTask) -> TextToImage:
    return TextToImage(task.model, task.encoder, dataset.codec, dataset.shape, dataset.grids)


def _finish(run: RunConfig, dataset: Dataset, average: GeneratorTask, out: Path, progress: bool) -> dict[str, Any]:
    """Evaluate the finished model and write result.json."""
    result: dict[str, Any] = {"weights": "model.safetensors", "images": dataset.images}
    prompts = run.data.eval_prompts(run.eval_prompts)
    if prompts is not None and run.data.metrics:
        pipeline, reference = _pipeline(dataset, average), run.data.eval_reference()
        measured = evaluate(pipeline, prompts.captions, reference, run.data.metrics, run.sampling, progress=progress)
        result |= {key: value for key, value in measured.items() if key != "seconds"}
    write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    return result
