"""An autoencoder as a training task: reconstruction, and a small KL divergence if it is continuous."""

from typing import Any

import torch
from torch import Tensor

from tmatch.codec.autoencoder import Autoencoder
from tmatch.codec.codes import CodeAutoencoder
from tmatch.data import InMemory
from tmatch.rng import RandomStreams
from tmatch.train.trainer import Task


class AutoencoderTask(Task):
    """|x - decode(z)|^2 + kl KL(q(z | x), N(0, I)), z ~ q(z | x), over images (n, 3, height, width) in [0, 1]."""

    def __init__(
        self, autoencoder: Autoencoder | CodeAutoencoder, images: Tensor, kl: float = 1e-4, seed: int = 0
    ) -> None:
        super().__init__()
        if images.shape[-1] % 4 or images.shape[-2] % 4:
            raise ValueError(f"The sides of images must be multiples of 4; got {images.shape[-2]}x{images.shape[-1]}.")
        self.autoencoder = autoencoder
        self.data = InMemory(images, seed=seed)
        self.kl = kl

    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        chosen = self.data.indices(step, size).tensor_split(parts)[part]
        indices = torch.arange(size).tensor_split(parts)[part]
        image = self.data.x[chosen]
        rng = RandomStreams.derive(self.data.seed, step, indices, image.device)
        reconstruction, divergence = self.autoencoder.trained(image, rng)
        return (reconstruction - image).square().mean() + self.kl * divergence

    def deepcopy_memo(self) -> dict[int, Any]:
        return {id(self.data): self.data}
