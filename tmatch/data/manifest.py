"""What shards are: by which encoders, of which source, and what became of its rows."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import field_validator

from tmatch.config import Config
from tmatch.data.crop import Crop
from tmatch.data.sources.source import LETTERS
from tmatch.hub import EncoderDtype


class Identity(Config):
    """Which network it was: the digest is of its weights."""

    name: str
    precision: EncoderDtype
    digest: str

    def differs(self, other: Self) -> str:
        """In what its answers are not those of another, in words; nothing where they are the same."""
        shared = [name for name in type(self).model_fields if name not in ("name", "precision", "longest")]
        own = "other weights" if self.precision == other.precision else f"{other.precision} for {self.precision}"
        return " and ".join(
            own if name == "digest" else f"another {name}"
            for name in shared
            if getattr(self, name) != getattr(other, name)
        )


class AutoencoderIdentity(Identity):
    """Which autoencoder latents are of, and how they were scaled."""

    channels: int
    factor: int
    scale: float
    shift: float
    codes: int | None = None


class TextIdentity(Identity):
    """Which text encoder conditions are of."""

    width: int
    longest: int


class Settings(Config):
    """All that the bytes of a shard depend on; and a note on the licence, and where encoders were."""

    source: str
    contents: str = ""  # letters of some rows of the source
    rows: int
    crop: Crop
    autoencoder: AutoencoderIdentity
    text: TextIdentity
    dtype: EncoderDtype
    chunk: int
    batch: int
    licence: str

    @field_validator("source")
    @classmethod
    def _plain(cls, source: str) -> str:
        """A folder is the same with a slash behind it."""
        return str(Path(source))

    def differs(self, other: Self) -> list[str]:
        """The settings that would give other bytes; a source may lie elsewhere, and some of its rows may be mended."""
        mine, others = self._essence(), other._essence()
        differ = [key for key in mine if mine[key] != others[key]]
        known = bool(self.contents) and alike(self.contents, other.contents)
        same_place = not self.contents and self.source == other.source
        return differ if known or same_place else ["contents" if self.contents else "source", *differ]

    def digest(self) -> str:
        """Of all that bytes depend on besides the rows of the source."""
        return hashlib.sha256(json.dumps(self._essence(), sort_keys=True).encode()).hexdigest()

    def _essence(self) -> dict[str, Any]:
        """All but a note, where encoders were, and which source it is."""
        beside: Any = {"licence": True, "source": True, "contents": True, "autoencoder": {"name"}, "text": {"name"}}
        return self.model_dump(mode="json", exclude=beside)


def alike(then: str, now: str) -> bool:
    """Whether the contents of two sources are of one, of which rows were mended: half of those usable then are there.

    What could not be used may be anything now, for that was to be mended.
    """
    before, after = ([text[k : k + LETTERS] for k in range(0, len(text), LETTERS)] for text in (then, now))
    same = [a == b for a, b in zip(before, after, strict=False) if "-" not in a]
    return len(then) == len(now) and 2 * sum(same) >= len(same)


class Shard(Config):
    """One file: samples of one size."""

    file: str
    samples: int
    size: tuple[int, int]  # of the latents
    sha256: str


class Skipped(Config):
    """A row that could not be used."""

    row: int
    key: str
    reason: str


class Chunk(Config):
    """What became of a stretch of rows."""

    settings: str = ""  # their digest; chunks of before do not say
    listed: str = ""  # a digest of the names and captions of its rows
    shards: tuple[Shard, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    captions: int = 0
    captions_cut: int = 0  # longer than the text encoder reads


class Manifest(Config):
    """What a folder of shards holds."""

    version: Literal[1] = 1
    settings: Settings
    samples: int
    captions: int
    captions_cut: int
    skipped: int
    null: str  # checksum of the empty caption's file
    shards: tuple[Shard, ...]

    def sizes(self) -> Counter[tuple[int, int]]:
        """How many samples there are of each size of latents."""
        sizes: Counter[tuple[int, int]] = Counter()
        for shard in self.shards:
            sizes[shard.size] += shard.samples
        return sizes

    def contents(self) -> str:
        """A digest of all samples."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    @classmethod
    def joined(cls, manifests: Sequence["Manifest"]) -> "Manifest":
        """That of several folders together, whose encoders are the same."""
        counts = {
            name: sum(getattr(one, name) for one in manifests)
            for name in ("samples", "captions", "captions_cut", "skipped")
        }
        longest = max(one.settings.text.longest for one in manifests)
        text = manifests[0].settings.text.model_copy(update={"longest": longest})
        settings = manifests[0].settings.model_copy(update={"text": text})
        shards = tuple(shard for one in manifests for shard in one.shards)
        return manifests[0].model_copy(update={**counts, "settings": settings, "shards": shards})

    @classmethod
    def of(cls, settings: Settings, chunks: Sequence[Chunk], null: str) -> "Manifest":
        """The sum of all chunks."""
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
