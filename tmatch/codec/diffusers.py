"""Pretrained autoencoders, through diffusers."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.codec.patch import require_images
from tmatch.extras import needs_extra
from tmatch.hub import ENCODER_DTYPES, EncoderDtype, HubOptions, checked_folder, fingerprint, loading, require_weights
from tmatch.reading import load_network, read_json, read_weights


class PretrainedAutoencoder(nn.Module):
    """z = (E(x) - shift) scale and back, for an `AutoencoderKL`, whose E is the mean, or an `AutoencoderTiny`.

    One that overflows in half precision (`force_upcast`, as for SDXL) computes in float32.
    """

    codebook_size: int | None = None

    def __init__(self, network: nn.Module, name: str, precision: EncoderDtype = "float32") -> None:
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
        """Everything that the latents depend on."""
        return {
            "name": self.name, "precision": self.precision, "digest": fingerprint(self.network),
            "channels": self.channels, "factor": self.factor, "scale": self.scale, "shift": self.shift,
            "codebook_size": self.codebook_size,
        }  # fmt: skip

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """float32 latents (n, channels, height / factor, width / factor) of images in [0, 1]."""
        output = self._encoded(images)
        z = output.latents if hasattr(output, "latents") else output.latent_dist.mode()
        return (z.float() - self.shift) * self.scale

    def _encoded(self, images: Tensor) -> Any:  # noqa: ANN401
        require_images(images, self.factor)
        return self.network.encode((2 * images - 1).to(self._dtype))

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """float32 images in [0, 1]."""
        z = (latents / self.scale + self.shift).to(self._dtype)
        return ((self.network.decode(z).sample.float() + 1) / 2).clamp(0, 1)


class PretrainedCodes(PretrainedAutoencoder):
    """Images as codes (n, 1, height / factor, width / factor) and back, by a `VQModel`.

    The nearest codebook entry is found in float32, whatever the network computes in.
    """

    def __init__(self, network: nn.Module, name: str, precision: EncoderDtype = "float32") -> None:
        super().__init__(network, name, precision)
        self.codebook_size = int(self.network.config.num_vq_embeddings)
        self.channels, self.scale, self.shift = 1, 1.0, 0.0

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """The codes of images in [0, 1] as float32, NaN where the network overflows."""
        z = self._encoded(images).latents.float().movedim(1, -1)
        codebook, finite = self.network.quantize.embedding.weight.float(), z.isfinite().all(-1)
        codes = torch.stack([torch.cdist(one, codebook).argmin(-1) for one in z.flatten(1, 2)])  # saves memory
        return codes.view(finite.shape).float().masked_fill(~finite, torch.nan)[:, None]

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """float32 images in [0, 1]."""
        codes = latents[:, 0].round().long()
        z = self.network.quantize.embedding(codes).movedim(-1, 1)
        condition = z if self.network.config.norm_type == "spatial" else None
        return ((self.network.decoder(self.network.post_quant_conv(z), condition).float() + 1) / 2).clamp(0, 1)


def load_autoencoder(
    name: str, precision: EncoderDtype = "float32", hub: HubOptions = HubOptions()
) -> PretrainedAutoencoder:
    """An autoencoder by its hub name, its folder, or the stem of the two files of a tiny autoencoder.

    `vae/taesdxl` stands for vae/taesdxl_encoder.safetensors and vae/taesdxl_decoder.safetensors, as TAESD is released.
    """
    with needs_extra(f"The autoencoder {name}", "t2i"):
        from diffusers import AutoencoderKL, AutoencoderTiny, VQModel
    kinds = {"AutoencoderKL": AutoencoderKL, "AutoencoderTiny": AutoencoderTiny, "VQModel": VQModel}
    dtype = ENCODER_DTYPES[precision]
    advice = "pass a hub name, a folder with config.json and safetensors, or the stem of a tiny model's files."
    tiny = Path(f"{name}_encoder.safetensors")
    if hub.is_local(tiny):
        with loading("autoencoder", str(tiny), advice):
            return PretrainedAutoencoder(nn.Module.to(_tiny(name, AutoencoderTiny), dtype), name, precision)
    with loading("autoencoder", name, advice), checked_folder(name, hub) as (folder, weights):
        config = read_json(folder / "config.json")
        kind = config.get("_class_name")
        if kind not in kinds:
            raise ValueError(f"its class is {kind}, not one of {', '.join(kinds)}")
        with torch.device("meta"):
            needed = sum(weight.numel() for weight in kinds[kind].from_config(config).parameters())
        if needed > 2 * weights:
            raise ValueError(f"its configuration describes {needed:,} weights, but its files have {weights:,}")
        network, found = kinds[kind].from_pretrained(
            folder, torch_dtype=dtype, use_safetensors=True, output_loading_info=True
        )
        require_weights(network, found["missing_keys"])
    return (PretrainedCodes if kind == "VQModel" else PretrainedAutoencoder)(network, name, precision)


def _tiny(stem: str, kind: Any) -> nn.Module:  # noqa: ANN401
    """A tiny autoencoder from its two files; their decoder counts a first layer that diffusers omits."""
    encoder, decoder = (read_weights(Path(f"{stem}_{part}.safetensors")) for part in ("encoder", "decoder"))
    weights = {f"encoder.layers.{name}": weight for name, weight in encoder.items()}
    for name, weight in decoder.items():
        layer, rest = name.split(".", 1)
        weights[f"decoder.layers.{int(layer) - 1}.{rest}"] = weight
    build: Any = partial(kind, latent_channels=decoder["1.weight"].shape[1])
    return load_network(build, weights, [1], f"{stem} are not those of a tiny autoencoder")
