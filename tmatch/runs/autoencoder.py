"""Training an autoencoder, of `shapes` or of your own images."""

import hashlib
import json
from pathlib import Path

import torch
from pydantic import Field

from tmatch.codec import Autoencoder, CodeAutoencoder
from tmatch.codec.saved import SETTINGS, WEIGHTS, AutoencoderConfig
from tmatch.config import Count, free_field
from tmatch.datasets import AnyImageData
from tmatch.eval.shapes import check
from tmatch.files import write_tensors, write_text
from tmatch.ranks import rank_and_world_size
from tmatch.rng import seeded_init
from tmatch.train import AutoencoderTask, TrainConfig, Trainer
from tmatch.train.resume import require_resumable


class AutoencoderRun(AutoencoderConfig):
    """Everything about the run of an autoencoder."""

    train: TrainConfig
    data: AnyImageData
    kl: float = Field(default=1e-4, ge=0, description="weight of the KL divergence from N(0, I)")
    held_out: Count = free_field(1000, "images that the finished autoencoder is evaluated on")


def preflight_autoencoder(run: AutoencoderRun, out: Path) -> None:
    """Raise whatever a run would raise about its folder and data."""
    if rank_and_world_size()[1] > 1:
        raise ValueError("An autoencoder is trained by a single process: start it without torchrun.")
    require_resumable(out, run)
    run.train.resolve_device()
    run.data.training()
    run.data.validation(run.held_out)


def fit_autoencoder(run: AutoencoderRun, out: Path, progress: bool = False) -> dict[str, float]:
    """Train, or resume the run in `out`; then write the averaged weights and evaluate them on new images."""
    preflight_autoencoder(run, out)
    images = torch.cat(list(run.data.training().batches(1000))).to(run.train.resolve_device())
    with seeded_init(run.train.seed):
        task = AutoencoderTask(run.build(), images, run.kl, run.train.seed)
    fingerprint = hashlib.sha256(images.cpu().contiguous().numpy().data).hexdigest()
    trainer = Trainer(task, run.train, out, run_config=run, contents=fingerprint)
    trainer.resume()
    write_text(out / SETTINGS, run.model_dump_json(indent=2) + "\n")
    trainer.run(progress=progress)
    average = trainer.ema
    assert isinstance(average, AutoencoderTask)
    average.autoencoder.standardise(images)
    trainer.require_finite(average.autoencoder.state_dict().values())
    write_tensors(out / WEIGHTS, average.autoencoder.state_dict())
    result = evaluate_autoencoder(run, average.autoencoder.cpu())
    write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    return result


@torch.no_grad()
def evaluate_autoencoder(run: AutoencoderRun, autoencoder: Autoencoder | CodeAutoencoder) -> dict[str, float]:
    """Squared error on images that are not trained on, and for `shapes` the share of captions still satisfied."""
    prompts = run.data.eval_prompts(run.held_out) if "captions" in run.data.metrics else None
    held_out = prompts or run.data.validation(run.held_out)
    images = torch.cat(list(held_out.batches()))
    rebuilt = torch.cat([autoencoder.decode(autoencoder.encode(part)) for part in images.split(500)])
    error = {"squared_error": (rebuilt - images).square().mean().item()}
    if prompts is None:
        return error
    return {"captions_satisfied": check(rebuilt, held_out.captions).float().mean().item(), **error}
