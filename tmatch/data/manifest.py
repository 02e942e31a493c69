"""The manifest of a folder of data shards: the encoders, the source, and the counts of its rows."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import field_validator

from tmatch.conditioning.base import listed
from tmatch.config import Config, Count, Dimension
from tmatch.data.crop import Crop
from tmatch.data.sources.source import LETTERS, conditions_in_words
from tmatch.hub import EncoderDtype


class Identity(Config):
    """Which network encoded the data; the digest is that of its weights."""

    name: str
    precision: EncoderDtype
    digest: str

    def differs(self, other: "Identity") -> str:
        """How the outputs of the other network differ, in words; empty if they do not."""
        mine, others = (one.model_dump(exclude={"name", "precision", "max_length"}) for one in (self, other))
        weights = "other weights" if self.precision == other.precision else f"{other.precision} for {self.precision}"
        differ = (name for name in mine if mine[name] != others[name])
        return " and ".join(weights if name == "digest" else f"another {name}" for name in differ)


class AutoencoderIdentity(Identity):
    """Which autoencoder the latents belong to, and how they are scaled."""

    channels: Dimension
    factor: Dimension
    scale: float
    shift: float
    codebook_size: Count | None = None


class TextIdentity(Identity):
    """Which text encoder the embeddings belong to."""

    width: Dimension
    max_length: Dimension


class ShardSettings(Config):
    """Everything that the bytes of a shard depend on, and a note on the licence."""

    source: str
    contents: str = ""  # short digests of some rows of the source
    rows: int
    crop: Crop
    autoencoder: AutoencoderIdentity
    text: TextIdentity | None = None
    classes: tuple[str, ...] | None = None
    """Names of the classes, where samples have labels; without text and classes, they have neither."""
    dtype: EncoderDtype
    chunk: Count
    batch_size: Count
    licence: str

    @field_validator("source")
    @classmethod
    def _plain(cls, source: str) -> str:
        """Without a trailing slash."""
        return str(Path(source))

    @property
    def conditions(self) -> str:
        """What the images are trained with, in words."""
        return conditions_in_words(self.text is not None, self.classes)

    def require_same_encoders(self, other: Self, name: str) -> None:
        """Raise unless the data of `name`, which has these settings, was encoded as that of the others."""
        if self.conditions != other.conditions or self.classes != other.classes:
            own, expected = (f"{one.conditions}{_names(one.classes)}" for one in (self, other))
            raise ValueError(f"The shards in {name} are {own}, the others {expected}; prepare them in the same way.")
        texts = () if self.text is None or other.text is None else (("text encoder", self.text, other.text),)
        for kind, mine, others in (("autoencoder", self.autoencoder, other.autoencoder), *texts):
            if differs := others.differs(mine):
                raise ValueError(
                    f"The shards in {name} have another {kind}, with {differs}, than {others.name}; prepare the data "
                    "again with the same encoder."
                )

    def differs(self, other: Self) -> list[str]:
        """The settings that change the bytes; a source may have moved, and some of its rows may have been fixed."""
        free: Any = {"licence": True, "source": True, "contents": True, "autoencoder": {"name"}, "text": {"name"}}
        mine, others = (one.model_dump(exclude=free) for one in (self, other))
        differ = [key for key in mine if mine[key] != others[key]]
        return differ if is_same_source(self.contents, other.contents) else ["source", *differ]


def _names(classes: Sequence[str] | None) -> str:
    return "" if classes is None else f" ({listed(classes, 10)})"


def is_same_source(then: str, now: str) -> bool:
    """Whether the contents of two sources agree: at least half of the sampled rows that were usable are unchanged."""
    before, after = ([text[k : k + LETTERS] for k in range(0, len(text), LETTERS)] for text in (then, now))
    same = [a == b for a, b in zip(before, after, strict=False) if "-" not in a]
    return len(then) == len(now) and 2 * sum(same) >= len(same)


class Shard(Config):
    """A file with samples of one size."""

    file: str
    samples: Count
    size: tuple[Dimension, Dimension]  # of the latents
    sha256: str


class Skipped(Config):
    """A row that could not be used, and why."""

    row: int
    key: str
    reason: str


class Chunk(Config):
    """The result of encoding a range of rows."""

    listed: str = ""  # a digest of the names and captions of its rows
    shards: tuple[Shard, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    captions: int = 0
    captions_cut: int = 0  # longer than the text encoder's max_length


class Manifest(Config):
    """The contents of a folder of shards."""

    format: Literal[2] = 2
    settings: ShardSettings
    samples: int
    captions: int
    captions_cut: int
    skipped: int
    null: str | None = None  # checksum of the file with the empty caption
    shards: tuple[Shard, ...]

    def sizes(self) -> Counter[tuple[int, int]]:
        """The number of samples of each size of latents."""
        return sum((Counter({shard.size: shard.samples}) for shard in self.shards), Counter())

    def contents(self) -> str:
        """A digest of all samples and of the names of classes."""
        parts = [*(shard.sha256 for shard in self.shards), *(self.settings.classes or ())]
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    @classmethod
    def joined(cls, manifests: Sequence["Manifest"]) -> "Manifest":
        """The manifest of several folders that were encoded by the same networks."""
        first, summed = manifests[0].settings, ("samples", "captions", "captions_cut", "skipped")
        lengths = [one.settings.text.max_length for one in manifests if one.settings.text is not None]
        text = None if first.text is None else first.text.model_copy(update={"max_length": max(lengths)})
        changed: dict[str, Any] = {name: sum(getattr(one, name) for one in manifests) for name in summed}
        changed["settings"] = first.model_copy(update={"text": text})
        changed["shards"] = tuple(shard for one in manifests for shard in one.shards)
        return manifests[0].model_copy(update=changed)

    @classmethod
    def of(cls, settings: ShardSettings, chunks: Sequence[Chunk], null: str | None) -> "Manifest":
        """The manifest of all chunks."""
        shards = tuple(shard for chunk in chunks for shard in chunk.shards)
        return cls(
            settings=settings,
            samples=sum(shard.samples for shard in shards),
            captions=sum(chunk.captions for chunk in chunks),
            captions_cut=sum(chunk.captions_cut for chunk in chunks),
            skipped=sum(len(chunk.skipped) for chunk in chunks),
            null=null,
            shards=shards,
        )
