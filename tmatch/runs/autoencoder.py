"""Training an autoencoder, of `shapes` or of your own images."""

import hashlib
import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Generic

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from tmatch.codec import Autoencoder, CodeAutoencoder
from tmatch.eval.shapes import check
from tmatch.files import write_tensors, write_text
from tmatch.rng import seeded_init
from tmatch.runs.settings import AnyData, Data, ShapesData
from tmatch.train import AutoencoderTask, TrainConfig, Trainer, checkpoint
from tmatch.config import FREE, Config
from tmatch.migrate import migrate_settings
from tmatch.ranks import rank_and_world_size

WEIGHTS = "autoencoder.safetensors"


class AutoencoderRecipe(Config, Generic[AnyData]):
    """Everything about a run of the autoencoder; no other key is taken."""

    train: TrainConfig
    data: AnyData
    channels: int = Field(default=4, gt=0, description="of a latent")
    width: int = Field(default=48, gt=0, multiple_of=8, description="of the convolutions")
    blocks: int = Field(default=1, gt=0, description="residual blocks at each of two resolutions")
    levels: tuple[int, ...] = Field(default=(), description="of a discrete one: their product is the number of codes")
    kl: float = Field(default=1e-4, ge=0, description="weight of the divergence from N(0, I)")
    held_out: int = Field(
        default=1000, gt=0, description="images to measure the finished autoencoder on", json_schema_extra=FREE
    )

    def build(self) -> Autoencoder | CodeAutoencoder:
        """The network, with weights from the seed."""
        with seeded_init(self.train.seed):
            if self.levels:
                return CodeAutoencoder(self.levels, self.channels, self.width, self.blocks)
            return Autoencoder(self.channels, self.width, self.blocks)

    def preflight(self, out: Path) -> None:
        """Refuse what a run would refuse of its data and of where it is to be."""
        if rank_and_world_size()[1] > 1:
            raise ValueError("An autoencoder is trained by one process: start it without torchrun.")
        checkpoint.require_free(out)
        self.train.resolve_device()
        self.data.training()
        self.data.validation(self.held_out)

    def run(self, out: Path, progress: bool = False) -> dict[str, float] | None:
        """Train, or go on training; then write the averaged weights and say how well they rebuild new images.

        The answer is None where the run was interrupted; the same call goes on.
        """
        self.preflight(out)
        images = torch.cat(list(self.data.training().batches(1000))).to(self.train.resolve_device())
        task = AutoencoderTask(self.build(), images, self.kl, self.train.seed)
        contents = hashlib.sha256(images.cpu().contiguous().numpy().data).hexdigest()
        trainer = Trainer(task, self.train, out, about=self, contents=contents)
        trainer.resume()
        write_text(out / "recipe.json", self.model_dump_json(indent=2) + "\n")
        if not trainer.run(progress=progress):
            return None
        average = trainer.ema
        assert isinstance(average, AutoencoderTask)
        average.autoencoder.standardise(images)
        write_tensors(out / WEIGHTS, average.autoencoder.state_dict())
        result = self.evaluate(average.autoencoder.cpu())
        write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
        return result

    @torch.no_grad()
    def evaluate(self, autoencoder: Autoencoder | CodeAutoencoder) -> dict[str, float]:
        """Over images never trained on: the squared error, and for `shapes` the share that still has its caption."""
        eval_prompts = self.data.eval_prompts(self.held_out)
        held_out = eval_prompts or self.data.validation(self.held_out)
        images = torch.cat(list(held_out.batches()))
        rebuilt = torch.cat([autoencoder.decode(autoencoder.encode(part)) for part in images.split(500)])
        error = {"squared_error": (rebuilt - images).square().mean().item()}
        if eval_prompts is None:
            return error
        return {"captions_satisfied": check(rebuilt, held_out.captions).float().mean().item(), **error}


def load_autoencoder(path: Path, recipe: AutoencoderRecipe[Any]) -> Autoencoder | CodeAutoencoder:
    """An autoencoder from the file that a run wrote."""
    autoencoder, tensors = recipe.build(), load_file(path)
    levels = tensors.get("quantiser.levels")
    if (() if levels is None else tuple(levels.tolist())) != recipe.levels:
        raise ValueError(
            f"{path} has another codebook, of levels {None if levels is None else levels.tolist()}, than its recipe, "
            f"{list(recipe.levels)}; give the weights of that recipe."
        )
    autoencoder.load_state_dict(tensors)
    return autoencoder.requires_grad_(False).eval()


def committed_autoencoder(name: str = "shapes") -> Autoencoder | CodeAutoencoder:
    """An autoencoder that comes with the package, as its recipe trained it."""
    with as_file(files("tmatch") / "weights" / f"{name.replace('-', '_')}_autoencoder.safetensors") as path:
        return load_autoencoder(path, COMMITTED[name]())


def shapes_autoencoder() -> AutoencoderRecipe[ShapesData]:
    """The committed autoencoder of `shapes`: 32x32x3 to 8x8x4, about seven minutes on two CPU cores."""
    train = TrainConfig(
        steps=1500, batch_size=64, learning_rate=2e-3, warmup=100, cooldown=0.5, ema_decay=0.995, seed=1
    )
    return AutoencoderRecipe[ShapesData](train=train, data=ShapesData(images=20_000, withhold=False))


def shapes_codes_autoencoder() -> AutoencoderRecipe[ShapesData]:
    """The committed discrete autoencoder of `shapes`: 32x32x3 to 4x4 codes of 4096."""
    train = TrainConfig(
        steps=4000, batch_size=64, learning_rate=2e-3, warmup=100, cooldown=0.5, ema_decay=0.995, seed=1
    )
    data = ShapesData(images=20_000, withhold=False)
    return AutoencoderRecipe[ShapesData](train=train, data=data, channels=8, levels=(4, 4, 4, 4, 4, 4))


COMMITTED = {"shapes": shapes_autoencoder, "shapes-codes": shapes_codes_autoencoder}
"""The autoencoders that come with the package."""


def copy_autoencoder(name: str, out: Path) -> None:
    """Keep the autoencoder that a run uses with it, unless it comes with the package."""
    if name in (*COMMITTED, "none") or checkpoint.latest(out) is not None:
        return  # a run that has begun keeps the one it began with
    if any(file.name not in ("recipe.json", WEIGHTS) for file in (out / "autoencoder").glob("*")):
        raise ValueError(
            f"{out / 'autoencoder'} is where the run would keep its autoencoder, and something else is there; give "
            "another folder for the run."
        )
    draft = out / ".autoencoder.writing"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for file in ("recipe.json", WEIGHTS):
        shutil.copyfile(Path(name) / file, draft / file)
    shutil.rmtree(out / "autoencoder", ignore_errors=True)
    draft.rename(out / "autoencoder")


def require_same_autoencoder(name: str, out: Path) -> None:
    """Refuse to go on with another autoencoder than the one the run in `out` began with, and keeps."""
    newest = checkpoint.latest(out)
    settings = {} if newest is None else checkpoint.record(newest).get("settings")
    then = settings.get("autoencoder", name) if isinstance(settings, dict) else name
    if then != name:
        raise ValueError(
            f"{out} holds a run with another autoencoder, '{then}' and not '{name}'; give that one, or a new folder."
        )


def require_finished(folder: Path) -> None:
    """Refuse a folder that is not that of an autoencoder."""
    for file in ("recipe.json", WEIGHTS):
        if not (folder / file).is_file():
            raise ValueError(
                f"{folder} has no {file}: an autoencoder is {', '.join(map(repr, COMMITTED))}, 'none', "
                "or the folder of a finished run of one."
            )


def open_autoencoder(name: str, folder: Path) -> Autoencoder | CodeAutoencoder | None:
    """One that comes with the package, 'none' for pixels, and any other is in a folder."""
    if name == "none":
        return None
    if name in COMMITTED:
        return committed_autoencoder(name)
    require_finished(folder)
    try:
        recipe = AutoencoderRecipe[Data].model_validate_json(
            json.dumps(migrate_settings(json.loads((folder / "recipe.json").read_text())))
        )
        return load_autoencoder(folder / WEIGHTS, recipe)
    except (ValidationError, SafetensorError, RuntimeError) as error:
        raise ValueError(f"The autoencoder in {folder} cannot be read ({str(error).splitlines()[0]}).") from error
