"""The configuration of a generator's run: data, networks, training and sampling."""

from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from tmatch.backbone import DiT, HuggingFaceBackbone, Llama
from tmatch.codec import Patchify
from tmatch.config import FREE, MAX_SIZE, Config, Count, Dimension, Layers, free_field, lookup
from tmatch.datasets import AnyData, AnyEncoders, AssumedData, InputShapes, ShardsData, WordsConfig
from tmatch.datasets.base import Shape
from tmatch.generation.config import SamplingConfig
from tmatch.model import Model
from tmatch.parametrization import PARAMETRIZATIONS
from tmatch.runs.language_model import build_language_model, read_architecture
from tmatch.times import DENSITIES, Continuous
from tmatch.train import TrainConfig
from tmatch.variants import HeadConfig, Variant, variant


class BackboneConfig(Config):
    """Backbone."""

    kind: Literal["dit", "llama", "huggingface"] = Field(
        default="dit", description="'llama' and 'huggingface' are for variants without a time input"
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="causal language model of transformers, by hub name or folder, which sets all sizes (huggingface)",
    )
    width: Dimension = Field(default=128, description="width of a token")
    depth: Layers = Field(default=4, description="Transformer blocks")
    heads: Dimension = Field(default=4, description="attention heads")
    checkpointing: bool = free_field(False, "recompute activations in the backward pass to save memory")

    def architecture(self) -> dict[str, Any] | None:
        """The configuration of a language model, to be stored with the model; None for our own networks."""
        return read_architecture(self.model) if self.kind == "huggingface" else None

    def build(
        self, channels: int, condition_width: int | None, timed: bool, architecture: dict[str, Any] | None
    ) -> nn.Module:
        """The network, with weights from the current generator."""
        if architecture is not None:
            network = build_language_model(architecture)
            return HuggingFaceBackbone(network, channels, condition_width, self.checkpointing)
        sizes = (channels, self.width, self.depth, self.heads, condition_width)
        if self.kind == "llama":
            return Llama(*sizes, checkpointing=self.checkpointing)
        return DiT(*sizes, timed=timed, checkpointing=self.checkpointing)


class InitConfig(Config):
    """Trained model to start from."""

    model: str | None = Field(default=None, min_length=1, description="name or folder of a model to load weights from")
    pretrained: bool = Field(default=False, description="load the pretrained weights of backbone.model (huggingface)")
    freeze: bool = Field(
        default=False, description="do not train the loaded weights (except tables with new words or classes)"
    )
    lora: int = Field(default=0, ge=0, le=MAX_SIZE, description="rank of LoRA on the backbone; 0 trains it fully")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not (self.model or self.pretrained) and (self.freeze or self.lora):
            raise ValueError("init.freeze and init.lora need a trained model: set init.model.")
        if self.model and self.pretrained:
            raise ValueError("init.model and init.pretrained exclude each other: set one of them.")
        if self.freeze and self.lora:
            raise ValueError("init.freeze and init.lora exclude each other: set one of them.")
        return self


class RunConfig(Config):
    """Everything about the run of a generator."""

    train: TrainConfig
    variant: str = Field(description="variant to train, a row of `tmatch variants`")
    parametrization: str | None = Field(
        default=None, description=f"parametrization instead of the variant's: {', '.join(PARAMETRIZATIONS)}"
    )
    density: str | None = Field(
        default=None, description=f"density of t in training instead of the variant's: {', '.join(DENSITIES)}"
    )
    data: AnyData
    autoencoder: str | None = Field(
        default=None,
        min_length=1,
        description="autoencoder of in-memory images: 'shapes', 'shapes-codes', 'none' (pixels), or a run's folder",
    )
    patch: tuple[Dimension, Dimension] = Field(default=(2, 2), description="latent pixels per token")
    backbone: BackboneConfig = BackboneConfig()
    head: HeadConfig = HeadConfig(depth=2)
    text: WordsConfig | None = Field(default=None, description="text encoder of in-memory images")
    init: InitConfig = InitConfig()
    caption_dropout: float = Field(default=0.1, ge=0, le=1, description="fraction of captions dropped in training")
    sampling: SamplingConfig = Field(default=SamplingConfig(), json_schema_extra=FREE)
    validation_images: Count = free_field(256, "images of the validation loss")
    eval_prompts: Count = free_field(1000, "prompts that the finished model is evaluated on")
    assumed: AssumedData = Field(default=AssumedData(), json_schema_extra=FREE)

    @property
    def row(self) -> Variant:
        """The variant, with the run's own parametrization and density of times if it has them."""
        row = variant(self.variant)
        if self.parametrization is not None:
            row = replace(row, parametrization=lookup("parametrization", PARAMETRIZATIONS, self.parametrization))
        if self.density is not None:
            if not isinstance(row.times, Continuous):
                raise ValueError(f"'{self.variant}' trains at the times of a grid: leave out density.")
            row = replace(row, times=replace(row.times, density=lookup("density", DENSITIES, self.density)))
        return row

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        row = self.row
        if row.discrete and self.patch != (1, 1):
            raise ValueError(f"'{self.variant}' samples codes, and each is one token: set patch to (1, 1).")
        if self.backbone.kind != "dit" and row.timed:
            raise ValueError(f"'{self.variant}' needs a backbone with a time input: set backbone.kind to dit.")
        if self.init.pretrained and self.backbone.kind != "huggingface":
            raise ValueError("init.pretrained loads a language model: set backbone.kind to huggingface.")
        if isinstance(self.data, ShardsData) and not (self.autoencoder is None and self.text is None):
            raise ValueError("Data shards are already encoded: leave out autoencoder and text.")
        try:
            row.parametrization.grid(row.times, self.sampling.times(row.times))
        except ValueError as error:
            raise ValueError(f"{error} For the variant's own steps: --sampling.steps None.") from error
        return self

    def input_shapes(self) -> InputShapes:
        """Shapes of what the model reads; assumed where the data does not exist yet."""
        return self.data.input_shapes(
            Patchify(self.patch), self.autoencoder, self.text, self.row.discrete, self.assumed
        )

    def network(
        self, shape: Shape, condition_width: int | None, codebook_size: int | None = None,
        architecture: dict[str, Any] | None = None,
    ) -> Model:  # fmt: skip
        """The model of states of a shape, with weights from the current generator.

        `architecture` is that of a language model; by default it is read from its folder or the hub.
        """
        row, channels = self.row, shape[-1]
        if row.discrete != (codebook_size is not None):
            kind = "discrete" if row.discrete else "continuous"
            raise ValueError(f"'{self.variant}' needs a {kind} autoencoder, or data shards prepared with one.")
        iterations, tokens = self.sampling.iterations, shape[0] * shape[1]
        if iterations is not None and iterations > tokens:
            raise ValueError(f"sampling.iterations is {iterations}, but an image has {tokens} tokens: lower it.")
        architecture = self.backbone.architecture() if architecture is None else architecture
        inputs = self.backbone.width if row.embeds else channels
        backbone = self.backbone.build(inputs, condition_width, row.timed, architecture)
        return row.build(backbone, channels, self.head, codebook_size)


class ModelConfig(Config):
    """model.json: what a model is, beside its weights."""

    format: Literal[2] = 2
    run: RunConfig
    shape: tuple[Dimension, Dimension, Dimension]
    grids: tuple[tuple[Dimension, Dimension], ...] = ()
    """Grids of tokens the model was trained on; empty if not recorded."""
    encoders: AnyEncoders
    architecture: dict[str, Any] | None = None
    """Configuration of a Hugging Face backbone, so that loading needs no hub."""

    def network(self, codebook_size: int | None) -> Model:
        """The model, with weights from the current generator."""
        known = (self.architecture or {}) if self.run.backbone.kind == "huggingface" else None
        return self.run.network(self.shape, self.encoders.condition_width, codebook_size, known)
