"""Runs: a configuration in, a folder with a trained model out."""

from pathlib import Path
from typing import Any

from tmatch.config import nonempty_path
from tmatch.runs.autoencoder import AutoencoderRun, fit_autoencoder, preflight_autoencoder
from tmatch.runs.config import BackboneConfig, InitConfig, ModelConfig, RunConfig
from tmatch.runs.fit import fit_generator, preflight_generator
from tmatch.runs.load import MODELS, LoadedModel, load_model

AnyRun = RunConfig | AutoencoderRun


def fit(run: AnyRun, out: str | Path, progress: bool = False) -> dict[str, Any]:
    """Train, or resume the run in `out`; then write the averaged weights, and return what the finished model measures.

    Raises `Interrupted` on Ctrl-C or SIGTERM, after saving: call it again to resume. Of several processes only rank 0
    evaluates the model; the others return {}.
    """
    out = nonempty_path(out)
    if isinstance(run, AutoencoderRun):
        return fit_autoencoder(run, out, progress)
    return fit_generator(run, out, progress)


def preflight(run: AnyRun, out: Path) -> None:
    """Raise whatever `fit` would raise about settings, folder and data, without training."""
    run.train.parts()
    if isinstance(run, AutoencoderRun):
        return preflight_autoencoder(run, out)
    return preflight_generator(run, out)


__all__ = [
    "MODELS", "AnyRun", "AutoencoderRun", "BackboneConfig", "InitConfig", "LoadedModel", "ModelConfig", "RunConfig",
    "fit", "load_model", "preflight",
]  # fmt: skip
