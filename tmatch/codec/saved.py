"""Autoencoders on disk: those that ship with the package and those that training runs write."""

import json
from importlib.resources import as_file, files
from pathlib import Path

from pydantic import Field
from torch import nn

from tmatch.codec.autoencoder import Autoencoder
from tmatch.codec.codec import Codec, Latents
from tmatch.codec.codes import CodeAutoencoder
from tmatch.config import Config, Count, Dimension, Layers
from tmatch.hub import fingerprint
from tmatch.reading import contained, first_line, load_network, read_json, read_weights

WEIGHTS, SETTINGS = "autoencoder.safetensors", "recipe.json"


class AutoencoderConfig(Config):
    """Architecture of an autoencoder."""

    channels: Dimension = Field(default=4, description="channels of a latent")
    width: Dimension = Field(default=48, multiple_of=8, description="width of the convolutions")
    blocks: Layers = Field(default=1, description="residual blocks at each of the two resolutions")
    levels: tuple[Count, ...] = Field(
        default=(), description="levels of a discrete autoencoder; their product is the codebook size"
    )

    def build(self) -> Autoencoder | CodeAutoencoder:
        """The network, with weights from the current generator."""
        if self.levels:
            return CodeAutoencoder(self.levels, self.channels, self.width, self.blocks)
        return Autoencoder(self.channels, self.width, self.blocks)


SHIPPED = {"shapes": AutoencoderConfig(), "shapes-codes": AutoencoderConfig(channels=8, levels=(4,) * 6)}
"""The autoencoders that ship with the package."""
NO_AUTOENCODERS: dict[str, type[Latents] | None] = {"none": None, "latents": Latents}
"""What a codec has in place of an autoencoder: of images, and of latents."""


def load_autoencoder_file(path: Path, config: AutoencoderConfig) -> Autoencoder | CodeAutoencoder:
    """An autoencoder from the weights that a run wrote."""
    tensors = read_weights(path)
    levels = tensors.get("quantiser.levels")
    if (found := () if levels is None else tuple(levels.tolist())) != config.levels:
        raise ValueError(f"{path} has codebook levels {found}, its settings {config.levels}; use files of one run.")
    autoencoder = load_network(config.build, tensors, [config.blocks], f"{path} do not fit its settings")
    return autoencoder.requires_grad_(False).eval()


def shipped_autoencoder(name: str = "shapes") -> Autoencoder | CodeAutoencoder:
    """An autoencoder that ships with the package."""
    with as_file(files("tmatch") / "weights" / f"{name.replace('-', '_')}_autoencoder.safetensors") as path:
        return load_autoencoder_file(path, SHIPPED[name])


def open_autoencoder(name: str, folder: Path) -> Autoencoder | CodeAutoencoder | Latents | None:
    """A shipped autoencoder by name, None for 'none' (pixels), or else the one in `folder`."""
    if name in NO_AUTOENCODERS:
        stand_in = NO_AUTOENCODERS[name]
        return None if stand_in is None else stand_in()
    if name in SHIPPED:
        return shipped_autoencoder(name)
    for file in (SETTINGS, WEIGHTS):
        if not contained(folder / file).is_file():
            raise ValueError(
                f"{folder} has no {file}: an autoencoder is {', '.join(map(repr, SHIPPED))}, 'none', or the folder of "
                "a finished autoencoder run."
            )
    try:
        saved = read_json(folder / SETTINGS)
        architecture = {key: saved[key] for key in AutoencoderConfig.model_fields}
        config = AutoencoderConfig.model_validate_json(json.dumps(architecture))
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"The autoencoder in {folder} cannot be loaded ({first_line(error)}).") from error
    return load_autoencoder_file(folder / WEIGHTS, config)


def autoencoder_digest(codec: Codec) -> str | None:
    """A short digest of the autoencoder's weights; None without one."""
    if codec.autoencoder is None:
        return None
    if not isinstance(codec.autoencoder, nn.Module):
        raise ValueError("The weights of the autoencoder identify cached states; make it a torch.nn.Module.")
    return fingerprint(codec.autoencoder)
