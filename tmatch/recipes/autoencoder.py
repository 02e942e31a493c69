"""Training the autoencoder of `shapes`."""

from importlib.resources import as_file, files
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file

from tmatch.data import Autoencoder
from tmatch.data.shapes import Shapes
from tmatch.eval.shapes import check
from tmatch.train import AutoencoderTask, TrainConfig, Trainer

HELD_OUT_SEED = 10_000  # pictures that no recipe trains on


class AutoencoderRecipe(BaseModel):
    """Everything about a run of the autoencoder; no other key is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: TrainConfig
    channels: int = Field(default=4, gt=0)
    width: int = Field(default=48, gt=0, multiple_of=8)
    blocks: int = Field(default=1, gt=0)
    kl: float = Field(default=1e-4, ge=0)
    images: int = Field(default=20_000, gt=0)
    held_out: int = Field(default=1000, gt=0)
    seed: int = 1

    def build(self) -> Autoencoder:
        """The network, with weights from the seed."""
        torch.manual_seed(self.seed)
        return Autoencoder(self.channels, self.width, self.blocks)

    def run(self, out: Path, progress: bool = False) -> dict[str, float] | None:
        """Train, or go on training; then write `out`/autoencoder.safetensors and say how well it rebuilds new pictures.

        The answer is None where the run was interrupted; the same call goes on.
        """
        images = torch.cat([Shapes(self.seed).scenes(part).render() for part in torch.arange(self.images).split(1000)])
        trainer = Trainer(AutoencoderTask(self.build(), images, self.kl, self.seed), self.train, out, about=self)
        trainer.resume()
        out.mkdir(parents=True, exist_ok=True)
        (out / "recipe.json").write_text(self.model_dump_json(indent=2) + "\n")
        if not trainer.run(progress=progress):
            return None
        task = trainer.ema
        assert isinstance(task, AutoencoderTask)
        task.autoencoder.standardise(images)
        save_file(task.autoencoder.state_dict(), out / "autoencoder.safetensors")
        return evaluate(task.autoencoder, self.held_out)


@torch.no_grad()
def evaluate(autoencoder: Autoencoder, pictures: int) -> dict[str, float]:
    """Over pictures never trained on: the share that satisfies its caption once rebuilt, and the squared error."""
    scenes = Shapes(HELD_OUT_SEED).scenes(range(pictures))
    images = scenes.render()
    rebuilt = torch.cat([autoencoder.decode(autoencoder.encode(part)) for part in images.split(500)])
    satisfied = check(rebuilt, scenes.captions).float().mean().item()
    return {"captions_satisfied": satisfied, "squared_error": (rebuilt - images).square().mean().item()}


def load_autoencoder(path: Path, recipe: AutoencoderRecipe) -> Autoencoder:
    """An autoencoder from the file that a run wrote."""
    autoencoder = recipe.build()
    autoencoder.load_state_dict(load_file(path))
    return autoencoder.requires_grad_(False).eval()


def committed_autoencoder() -> Autoencoder:
    """The autoencoder of `shapes` that comes with the package, as the recipe trained it."""
    with as_file(files("tmatch") / "weights" / "shapes_autoencoder.safetensors") as path:
        return load_autoencoder(path, shapes_autoencoder())


def shapes_autoencoder() -> AutoencoderRecipe:
    """The committed autoencoder of `shapes`: 32x32x3 to 8x8x4, about seven minutes on two CPU cores."""
    train = TrainConfig(steps=1500, batch=64, learning_rate=2e-3, warmup=100, cooldown=0.5, ema=0.995, seed=1)
    return AutoencoderRecipe(train=train)
