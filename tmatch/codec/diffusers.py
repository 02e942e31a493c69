"""Autoencoders of images, through diffusers."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tmatch.hub import PRECISIONS, HubOptions, Precision, digest, extra, first_line, require_there, unavailable


class PretrainedAutoencoder(nn.Module):
    """z = (E(x) - shift) scale and back, for an `AutoencoderKL`, whose E is the mean, or an `AutoencoderTiny`.

    One that overflows in half precision, as SDXL's does by its own account, computes in float32.
    """

    codes: int | None = None
    """How many there are, where latents are made of them."""

    def __init__(self, network: nn.Module, name: str, precision: Precision = "float32") -> None:
        super().__init__()
        config: Any = network.config
        half = next(network.parameters()).dtype == torch.float16
        self.network: Any = (network.float() if half and getattr(config, "force_upcast", False) else network).eval()
        self.requires_grad_(False)
        self.name = name
        self.precision = precision
        self.scale = float(getattr(config, "scaling_factor", None) or 1.0)
        self.shift = float(getattr(config, "shift_factor", None) or 0.0)
        self.channels = int(config.latent_channels)
        blocks = getattr(config, "block_out_channels", None) or config.encoder_block_out_channels
        self.factor = 2 ** (len(blocks) - 1)

    def identity(self) -> dict[str, Any]:
        """What latents depend on."""
        return {
            "name": self.name, "precision": self.precision, "digest": digest(self.network), "channels": self.channels,
            "factor": self.factor, "scale": self.scale, "shift": self.shift, "codebook_size": self.codes,
        }  # fmt: skip

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Latents (n, channels, height / factor, width / factor) of images in [0, 1]; float32."""
        coded = self._encoded(images)
        z = coded.latents if hasattr(coded, "latents") else coded.latent_dist.mode()
        return (z.float() - self.shift) * self.scale

    def _encoded(self, images: Tensor) -> Any:  # noqa: ANN401
        """What the network says of images."""
        if images.ndim != 4 or images.shape[1] != 3 or any(side % self.factor for side in images.shape[2:]):
            raise ValueError(
                f"Images are (n, 3, height, width), sides divisible by {self.factor}; got {tuple(images.shape)}."
            )
        return self.network.encode((2 * images - 1).to(self._dtype))

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images in [0, 1] of latents; float32."""
        z = (latents / self.scale + self.shift).to(self._dtype)
        return ((self.network.decode(z).sample.float() + 1) / 2).clamp(0, 1)


class PretrainedCodes(PretrainedAutoencoder):
    """Images as codes (n, 1, height / factor, width / factor) and back, by a `VQModel` of images in [-1, 1].

    A code is that of the nearest entry of the codebook, looked for in float32 whatever the network computes in.
    """

    def __init__(self, network: nn.Module, name: str, precision: Precision = "float32") -> None:
        super().__init__(network, name, precision)
        self.codes = int(self.network.config.num_vq_embeddings)
        self.channels, self.scale, self.shift = 1, 1.0, 0.0

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """The codes of images in [0, 1], as numbers; float32, and not finite where the network overflows."""
        z = self._encoded(images).latents.float().movedim(1, -1)
        book, there = self.network.quantize.embedding.weight.float(), z.isfinite().all(-1)
        codes = torch.stack([torch.cdist(one, book).argmin(-1) for one in z.flatten(1, 2)])  # all at once would be many
        return codes.view(there.shape).float().masked_fill(~there, torch.nan)[:, None]

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images in [0, 1] of codes; float32."""
        codes = latents[:, 0].round().long()
        z = self.network.quantize.embedding(codes).movedim(-1, 1)
        about = z if self.network.config.norm_type == "spatial" else None
        return ((self.network.decoder(self.network.post_quant_conv(z), about).float() + 1) / 2).clamp(0, 1)


def load_autoencoder(
    name: str, precision: Precision = "float32", hub: HubOptions = HubOptions()
) -> PretrainedAutoencoder:
    """An autoencoder by its name on the hub, by its folder, or by the stem of a tiny one's two files.

    `vae/taesdxl` stands for vae/taesdxl_encoder.safetensors and vae/taesdxl_decoder.safetensors, as the authors of the
    tiny autoencoders give them out.
    """
    with extra(f"The autoencoder {name}"):
        from diffusers import AutoencoderKL, AutoencoderTiny, VQModel
    dtype = PRECISIONS[precision]
    if _part(name, "encoder").is_file():
        return PretrainedAutoencoder(nn.Module.to(_tiny(name, AutoencoderTiny), dtype), name, precision)
    require_there("an autoencoder", name)
    kinds = {"AutoencoderKL": AutoencoderKL, "AutoencoderTiny": AutoencoderTiny, "VQModel": VQModel}
    try:
        kind = AutoencoderKL.load_config(name, **hub.arguments()).get("_class_name")
        if kind not in kinds:
            raise ValueError(f"it holds a {kind or 'network'} that is none of {', '.join(kinds)}")
        network, found = kinds[kind].from_pretrained(
            name, torch_dtype=dtype, use_safetensors=True, output_loading_info=True, **hub.arguments()
        )
    except MemoryError:
        raise
    except Exception as error:  # files that are not as they should be make its library raise about anything
        advice = (
            "give the name of one on the hub, a folder with its config.json and safetensors, or the stem of a tiny "
            "one's files."
        )
        raise unavailable(f"autoencoder '{name}'", error, advice) from error
    if found["missing_keys"]:
        raise ValueError(
            f"The autoencoder {name} is not whole: its files lack {sorted(found['missing_keys'])[0]}; fetch it again."
        )
    return (PretrainedCodes if kind == "VQModel" else PretrainedAutoencoder)(network, name, precision)


def _part(stem: str, part: str) -> Path:
    return Path(f"{stem}_{part}.safetensors")


def _tiny(stem: str, kind: Any) -> nn.Module:  # noqa: ANN401
    """The two files of a tiny autoencoder, under the names that diffusers gives to the same layers.

    Its decoder begins with a layer that has no weights, which diffusers does not count.
    """
    try:
        encoder, decoder = (load_file(_part(stem, part)) for part in ("encoder", "decoder"))
        weights = {f"encoder.layers.{name}": weight for name, weight in encoder.items()}
        for name, weight in decoder.items():
            layer, rest = name.split(".", 1)
            weights[f"decoder.layers.{int(layer) - 1}.{rest}"] = weight
        network: nn.Module = kind(latent_channels=decoder["1.weight"].shape[1])
        network.load_state_dict(weights)
    except (OSError, RuntimeError, SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{stem} names no tiny autoencoder's two files, or one is damaged: {first_line(error, 1)}."
        ) from error
    return network
