"""Images, or latents, that are tensors in Python."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import PrivateAttr
from torch import Tensor

from tmatch.codec import Codec
from tmatch.codec.patch import require_images, require_unit_range
from tmatch.conditioning.base import require_text
from tmatch.data import CaptionedImages
from tmatch.data.encode import encode_dataset
from tmatch.datasets.base import Dataset, OpenContext, Split, halves
from tmatch.datasets.images import ImageData
from tmatch.tensors import State, require_finite

FOLD = 20
"""One image in so many is held out for validation."""


class TensorImages(CaptionedImages):
    """Images (n, 3, height, width), uint8 or in [0, 1], or latents, each with a caption, a class index or None."""

    def __init__(self, images: Tensor, captions: Sequence[Any], classes: Sequence[str] | None) -> None:
        self.images = images
        self.captions = captions
        self.classes = classes

    def load(self, indices: Sequence[int]) -> Tensor:
        chosen = self.images[list(indices)]
        return chosen.float() if chosen.is_floating_point() else chosen / 255

    def fingerprint(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(repr((self.images.dtype, self.images.shape)).encode())
        for image in self.images:
            digest.update(image.cpu().contiguous().view(torch.uint8).numpy())
        return digest.hexdigest()

    def part(self, indices: Sequence[int]) -> "TensorImages":
        """The images with these indices."""
        return TensorImages(self.images[list(indices)], [self.captions[k] for k in indices], self.classes)


class TensorData(ImageData):
    """Tensors of images, of which one in twenty is held out: `TensorData(images, labels=labels)`, only from Python.

    `images` are (n, 3, height, width), as uint8 or in [0, 1]. Instead, `latents` (n, channels, height, width) are of
    your own autoencoder, scaled to about unit variance. Each may have a label, an integer, or a caption; `class_names`
    are what the labels stand for. A run stores no tensors, but resumes only with equal ones.
    """

    kind: Literal["tensors"] = "tensors"
    _images: TensorImages | None = PrivateAttr(default=None)
    _latent: bool = PrivateAttr(default=False)

    def __init__(
        self,
        images: Any = None,  # noqa: ANN401
        *,
        latents: Any = None,  # noqa: ANN401
        labels: Any = None,  # noqa: ANN401
        captions: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        kind: Literal["tensors"] = "tensors",
    ) -> None:
        super().__init__(kind=kind)
        if images is not None and latents is not None:
            raise ValueError("Train on images or on latents: leave out one of them.")
        if images is not None or latents is not None:
            checked = _latents(latents) if images is None else _pixels(images)
            self._images = _captioned(checked, labels, captions, class_names)
            self._latent = images is None

    @property
    def name(self) -> str:
        return "tensors in memory"

    def training(self) -> CaptionedImages:
        return self._split(held_out=False)

    def validation(self, count: int) -> CaptionedImages:
        return self._split(held_out=True, part=slice(count))

    def eval_prompts(self, count: int, split: Split = "test") -> CaptionedImages | None:
        if self._images is None or split == "withheld":
            return None
        return self._split(held_out=True, part=halves(count)[split])

    def autoencoder(self, given: str | None) -> str:
        if self._latent and given is not None:
            raise ValueError("Latents are encoded already: leave out autoencoder.")
        return "latents" if self._latent else super().autoencoder(given)

    def open(self, context: OpenContext) -> Dataset:
        if self._latent and context.train.preview_every:
            raise ValueError("Latents are not images, so there are no previews: set train.preview_every to 0.")
        return super().open(context)

    def _encoded(self, images: CaptionedImages, codec: Codec, context: OpenContext) -> State:
        """The states; only those that an autoencoder computed are worth a copy on disk."""
        if codec.autoencoder is None or codec.latent:
            return encode_dataset(codec, images, context.train.resolve_device())
        return super()._encoded(images, codec, context)

    def fingerprint(self, images: CaptionedImages, codec: Codec) -> str:
        """Digest of the pixels, too."""
        return hashlib.sha256(f"{super().fingerprint(images, codec)} {images.fingerprint()}".encode()).hexdigest()

    def _split(self, held_out: bool, part: slice = slice(None)) -> TensorImages:
        if self._images is None:
            raise ValueError("Tensors are given in Python and not stored: pass TensorData(images, ...) to fit.")
        count = len(self._images)
        every = min(FOLD, count)
        chosen = [k for k in range(count) if (k % every == every - 1) == held_out]
        return self._images.part(chosen[part])


def _captioned(
    images: Tensor,
    labels: Any,  # noqa: ANN401
    captions: Sequence[str] | None,
    class_names: Sequence[str] | None,
) -> TensorImages:
    """The images, which must have as many labels or captions, or neither."""
    if len(images) < 2:
        raise ValueError(f"There must be at least two images, since one is held out; got {len(images)}.")
    if labels is not None and captions is not None:
        raise ValueError("Images have labels or captions, not both: leave out one of them.")
    if class_names is not None and labels is None:
        raise ValueError("class_names are the names of labels: pass labels, too.")
    given = labels if captions is None else captions
    if given is not None and len(given) != len(images):
        what = "labels" if captions is None else "captions"
        raise ValueError(f"There are {len(given)} {what} for {len(images)} images; pass one per image.")
    if labels is not None:
        return TensorImages(images, *_classes(labels, class_names))
    require_text(captions or [])
    return TensorImages(images, captions or [None] * len(images), None)


def _pixels(images: Any) -> Tensor:  # noqa: ANN401
    """Images as a tensor, checked."""
    images = torch.as_tensor(images)
    require_images(images[:1].float() if images.dtype == torch.uint8 else images)
    if images.is_floating_point():
        require_finite("images", images)
        require_unit_range(images)
    return images


def _latents(latents: Any) -> Tensor:  # noqa: ANN401
    """Latents as a tensor, checked."""
    latents = torch.as_tensor(latents)
    if latents.ndim != 4 or not latents.is_floating_point():
        what = f"{latents.dtype} of shape {tuple(latents.shape)}"
        raise ValueError(f"Latents must be floating point of shape (n, channels, height, width); got {what}.")
    require_finite("latents", latents)
    return latents


def _classes(labels: Any, names: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:  # noqa: ANN401
    """Labels as integers, and the names of their classes: by default numbers up to the largest label."""
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError("Labels are integers, one per image; pass names of classes as class_names.") from None
    if found.ndim != 1 or found.dtype.is_floating_point or found.dtype == torch.bool:
        shape = tuple(found.shape)
        raise ValueError(f"Labels are integers of shape (images,); got {found.dtype} of shape {shape}: convert them.")
    count = int(found.max()) + 1 if names is None else len(names)
    if found.min() < 0 or found.max() >= count:
        raise ValueError(
            f"Labels are from 0 to {count - 1}, one number per class; got {int(found.min())} to {int(found.max())}."
        )
    return found.tolist(), tuple(map(str, range(count)) if names is None else names)
