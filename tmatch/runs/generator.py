"""Training a text-to-image generator on images that fit in memory."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from tmatch.codec import Codec
from tmatch.data import InMemory, ShapeImages
from tmatch.data.images import grid
from tmatch.eval.captions import captions_satisfied
from tmatch.files import locked, write_text
from tmatch.model import Model
from tmatch.rng import seeded_init
from tmatch.codec.patch import Patchify
from tmatch.hub import HubOptions
from tmatch.hub import digest
from tmatch.runs.autoencoder import copy_autoencoder, open_autoencoder, require_same_autoencoder
from tmatch.runs.base import AssumedData, Shape, InputShapes, TrainedRecipe
from tmatch.runs.settings import AnyData, Data, Split
from tmatch.generation import TextToImage
from tmatch.conditioning import Conditioner, WordEncoder
from tmatch.train import Captioned, GeneratorTask, checkpoint
from tmatch.config import Config


class TextSettings(Config):
    """The text encoder that is trained along."""

    width: int = Field(default=128, gt=0)
    depth: int = Field(default=1, ge=0)
    heads: int = Field(default=4, gt=0)
    longest: int = Field(default=16, gt=0)  # words read of a caption


class GeneratorRecipe(TrainedRecipe, Generic[AnyData]):
    """Everything about a run of a generator; no other key is taken."""

    data: AnyData
    autoencoder: str = Field(
        default="shapes", description="the package's own, 'none' for pixels, or the folder of an autoencoder's run"
    )
    text: TextSettings = TextSettings()
    validation_images: int = Field(default=256, gt=0, description="images of the validation loss")
    held_out: int = Field(default=1000, gt=0, description="prompts to measure the finished model on")

    def build(self, codec: Codec, shape: Shape, vocabulary: tuple[str, ...]) -> TextToImage:
        """The networks, with weights from the seed; `shape` is that of a state."""
        text = self.text
        with seeded_init(self.train.seed):
            encoder = WordEncoder(vocabulary, text.width, text.depth, text.heads, text.longest)
            model = self.network(shape, text.width, codec.codes)
        return TextToImage(model, encoder, codec, shape, [shape[:2]])

    def codec(self, out: Path | None = None) -> Codec:
        """Images to states, as the run in `out` does it; or as one that has not begun would."""
        folder = Path(self.autoencoder) if out is None else out / "autoencoder"
        return Codec(Patchify(self.patch), open_autoencoder(self.autoencoder, folder))

    def eval_prompts(self, count: int, split: Split = "test") -> ShapeImages | None:
        return self.data.eval_prompts(count, split)

    def sizes(self, expected: AssumedData) -> InputShapes:
        codec = self.codec()
        rows, columns, channels = codec.encode(self.data.training().load([0])).shape[1:]
        return InputShapes((rows, columns, channels), (self.text.longest, self.text.width), codec.codes)

    def run(self, out: Path, progress: bool = False) -> dict[str, Any] | None:
        """Train, or go on training; then write the averaged weights, and measure them where there is a measure.

        The answer is None where the run was interrupted; the same call goes on. Of several processes one measures.
        """
        checkpoint.require_free(out)
        require_same_autoencoder(self.autoencoder, out)
        training = self.data.training()
        validation = self.data.validation(self.validation_images)
        processes, device = self.train.processes(), self.train.resolve_device()
        codec = self.codec(None if checkpoint.latest(out) is None else out).to(device)
        rows, columns, channels = codec.encode(training.load([0]).to(device)).shape[1:]
        pipeline = self.build(codec, (rows, columns, channels), self.data.vocabulary(training.captions))
        if processes.rank == 0:
            with locked(out):
                copy_autoencoder(self.autoencoder, out)
            how = "as they are" if codec.autoencoder is None else f"by the autoencoder {self.autoencoder}"
            print(
                f"tmatch: preparing the {len(training)} images of {self.data.name}, {how}",
                file=sys.stderr,
                flush=True,
            )
        processes.barrier()
        states = codec.encode_all(training.batches(), device)
        task = GeneratorTask(
            pipeline.model,
            pipeline.encoder,
            Captioned(InMemory(states, seed=self.train.seed), training.captions),
            Captioned(InMemory(codec.encode_all(validation.batches(), device)), validation.captions),
            self.drop,
        )

        def drawing(model: Model, encoder: Conditioner) -> TextToImage:
            return TextToImage(model, encoder, codec, pipeline.shape)

        return self.fit(
            task,
            out,
            lambda model, encoder: self._draw(drawing(model, encoder), validation.captions[:16]),
            lambda: describe(self, pipeline, out),
            lambda average: self._measure(drawing(average.model, average.encoder), out),
            hashlib.sha256("\n".join([*training.captions, identity(codec) or ""]).encode()).hexdigest(),
            progress,
        )

    def _draw(self, pipeline: TextToImage, prompts: Sequence[str]) -> Tensor:
        return grid(pipeline.generate(prompts, range(len(prompts)), **self.sampling.arguments()).images)

    def _measure(self, pipeline: TextToImage, out: Path) -> dict[str, Any]:
        """What the finished run has to show, written beside its weights."""
        result: dict[str, Any] = {"weights": "model.safetensors"}
        prompts = self.eval_prompts(self.held_out)
        if prompts is not None:
            measured = captions_satisfied(pipeline, prompts, **self.sampling.arguments())
            result |= {key: value for key, value in measured.record().items() if key != "seconds"}
        write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
        return result


def describe(recipe: GeneratorRecipe[Any], pipeline: TextToImage, out: Path) -> None:
    """Write all that is needed, beside the weights, to build the networks again."""
    assert isinstance(pipeline.encoder, WordEncoder)
    words, autoencoder = pipeline.encoder.vocabulary, identity(pipeline.codec)
    about = About(recipe=recipe, shape=pipeline.shape, vocabulary=words, autoencoder=autoencoder)
    write_text(out / "model.json", about.model_dump_json(indent=2) + "\n")


class About(Config):
    """What a model is, beside its weights."""

    recipe: GeneratorRecipe[Data]
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    vocabulary: tuple[str, ...]
    autoencoder: str | None = None  # its identity; none without one, or where the model is older than this

    def pipeline(self, folder: Path, hub: HubOptions = HubOptions()) -> TextToImage:
        """The networks of the run in a folder, with other weights; all of them are there, and the hub is not asked."""
        codec = self.recipe.codec(folder)
        if self.autoencoder not in (None, identity(codec)):
            raise ValueError(
                f"The model in {folder} was trained with another autoencoder, of another codebook or other weights, "
                f"than '{self.recipe.autoencoder}' now is; put its own back, or train anew."
            )
        return self.recipe.build(codec, self.shape, self.vocabulary)

    def network(self, folder: Path) -> Model:
        """The generator alone, with other weights."""
        with torch.device("cpu"):  # even where the generator is to be built elsewhere
            codes = self.recipe.codec(folder).codes
        return self.recipe.network(self.shape, self.recipe.text.width, codes)


def identity(codec: Codec) -> str | None:
    """What the autoencoder is, in a few letters."""
    return digest(codec.autoencoder) if isinstance(codec.autoencoder, nn.Module) else None
