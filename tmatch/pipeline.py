"""A trained model as one object: `Pipeline.from_pretrained(name)(prompt).images`."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor

from tmatch.data.pictures import to_image
from tmatch.pretrained.hub import Access, download, require_there, upload
from tmatch.recipes.export import export
from tmatch.recipes.models import HUB, MODELS, Opened, open_model
from tmatch.sample import Evaluations
from tmatch.tensors import whole


@dataclass(frozen=True)
class PipelineOutput:
    """Pictures, prompt by prompt, and what one of them took of each network."""

    images: list[Image.Image]
    tensors: Tensor
    evaluations: Evaluations


class Pipeline:
    """Prompts to pictures, called as diffusers' pipelines are; a picture depends on its prompt and its seed alone."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.networks = opened.pipeline
        self.recipe = opened.about.recipe

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None, local_files_only: bool = False
    ) -> Self:
        """A model that comes with the package, the folder of a run or of an export, or `owner/name` of the hub.

        No code of it is run; weights are safetensors. Its encoders are asked for as it is itself.
        """
        name, access = str(name), Access(token, local_files_only)
        require_there("a model", name)
        of_hub = name not in MODELS and not Path(name).exists() and name.count("/") == 1
        if of_hub or name.startswith(HUB):
            name = str(download(name.removeprefix(HUB), revision, access))
        return cls(open_model(name, access))

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write configuration, weights and a card to a new folder."""
        export(self.opened, Path(folder), dtype)

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Put it on the hub as `owner/name`; where it is then."""
        with tempfile.TemporaryDirectory() as draft:
            folder = Path(draft) / name.rpartition("/")[2]
            self.save_pretrained(folder)
            return upload(folder, name, private, token)

    def to(self, device: str | torch.device) -> Self:
        """Compute there."""
        self.networks.to(device)
        return self

    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        negative_prompt: str = "",
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int | None = None,
        head_steps: int | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        seed: int = 0,
        batch_size: int = 64,
    ) -> PipelineOutput:
        """Pictures of one prompt or of several; what is None is as the model's recipe has it.

        The first picture has the `seed`, the next ones the next.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        each = [text for text in prompts for _ in range(whole("num_images_per_prompt", num_images_per_prompt))]
        given = {"steps": num_inference_steps, "head_steps": head_steps, "guidance": guidance_scale}
        changes = {name: value for name, value in given.items() if value is not None}
        try:
            how = self.recipe.sampling.model_validate({**self.recipe.sampling.model_dump(), **changes})
        except ValidationError as error:
            wrong = error.errors()[0]
            name = {"steps": "num_inference_steps", "guidance": "guidance_scale"}.get(key := str(wrong["loc"][0]), key)
            raise ValueError(f"{name}: {wrong['msg']}, got {wrong['input']!r}.") from error
        drawn = self.networks.generate(
            each,
            range(seed, seed + len(each)),
            **how.arguments(),
            negative=negative_prompt,
            height=height,
            width=width,
            batch_size=batch_size,
        )
        return PipelineOutput([to_image(image) for image in drawn.images], drawn.images, drawn.evaluations)
