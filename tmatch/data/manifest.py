"""The manifest of a folder of data shards: the encoders, the source, and the counts of its rows."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import field_validator

from tmatch.config import Config, Count, Dimension
from tmatch.data.crop import Crop
from tmatch.data.sources.source import LETTERS
from tmatch.hub import EncoderDtype


class Identity(Config):
    """Which network encoded the data; the digest is that of its weights."""

    name: str
    precision: EncoderDtype
    digest: str

    def differs(self, other: Self) -> str:
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
    text: TextIdentity
    dtype: EncoderDtype
    chunk: Count
    batch_size: Count
    licence: str

    @field_validator("source")
    @classmethod
    def _plain(cls, source: str) -> str:
        """Without a trailing slash."""
        return str(Path(source))

    def differs(self, other: Self) -> list[str]:
        """The settings that change the bytes; a source may have moved, and some of its rows may have been fixed."""
        free: Any = {"licence": True, "source": True, "contents": True, "autoencoder": {"name"}, "text": {"name"}}
        mine, others = (one.model_dump(exclude=free) for one in (self, other))
        differ = [key for key in mine if mine[key] != others[key]]
        return differ if is_same_source(self.contents, other.contents) else ["source", *differ]


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
    null: str  # checksum of the file with the empty caption
    shards: tuple[Shard, ...]

    def sizes(self) -> Counter[tuple[int, int]]:
        """The number of samples of each size of latents."""
        return sum((Counter({shard.size: shard.samples}) for shard in self.shards), Counter())

    def contents(self) -> str:
        """A digest of all samples."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    @classmethod
    def joined(cls, manifests: Sequence["Manifest"]) -> "Manifest":
        """The manifest of several folders that were encoded by the same networks."""
        first, summed = manifests[0].settings, ("samples", "captions", "captions_cut", "skipped")
        max_length = max(one.settings.text.max_length for one in manifests)
        text = first.text.model_copy(update={"max_length": max_length})
        changed: dict[str, Any] = {name: sum(getattr(one, name) for one in manifests) for name in summed}
        changed["settings"] = first.model_copy(update={"text": text})
        changed["shards"] = tuple(shard for one in manifests for shard in one.shards)
        return manifests[0].model_copy(update=changed)

    @classmethod
    def of(cls, settings: ShardSettings, chunks: Sequence[Chunk], null: str) -> "Manifest":
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
