"""Data shards: encoded images and their captions or labels in safetensors files, described by a manifest."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from tmatch.data.manifest import Manifest, ShardSettings
from tmatch.files import write_bytes
from tmatch.migrate import migrate_manifest
from tmatch.reading import first_line, read_json, require_regular

MANIFEST = "manifest.json"
NULL = "null.safetensors"
OPEN = 1024
"""The maximum number of shards open at a time, since a process can map only so many files."""


@dataclass(frozen=True)
class Samples:
    """The contents of a shard: latents without a condition."""

    latents: Tensor  # (n, channels, height, width), or integer codes
    rows: Tensor  # row numbers in the source

    def __len__(self) -> int:
        return len(self.latents)

    @property
    def captions(self) -> int:
        """The number of captions."""
        return 0

    def condition(self, sample: int, turn: int) -> Tensor | int | None:
        """What a sample is trained with; of several captions, each is used in turn."""
        return None


@dataclass(frozen=True)
class LabelledSamples(Samples):
    """Latents with the index of a class each."""

    labels: Tensor

    def condition(self, sample: int, turn: int) -> int:
        return int(self.labels[sample])


@dataclass(frozen=True)
class CaptionedSamples(Samples):
    """Latents with one or more captions each."""

    text: Tensor  # (tokens, width): the tokens of all captions, concatenated
    text_ends: Tensor  # the end of each caption in text
    caption_ends: Tensor  # the end of each sample's captions in text_ends

    @classmethod
    def join(cls, latents: Tensor, conditions: Sequence[Sequence[Tensor]], rows: Sequence[int]) -> "CaptionedSamples":
        """From latents, and the tokens (length, width) of every caption of each."""
        captions = [caption for sample in conditions for caption in sample]
        return cls(
            latents,
            torch.tensor(rows),
            torch.cat(captions),
            torch.tensor([len(caption) for caption in captions]).cumsum(0),
            torch.tensor([len(sample) for sample in conditions]).cumsum(0),
        )

    @property
    def captions(self) -> int:
        return len(self.text_ends)

    def condition(self, sample: int, turn: int) -> Tensor:
        """The tokens of one of a sample's captions."""
        first, end = _between(self.caption_ends, sample)
        start, stop = _between(self.text_ends, first + turn % (end - first))
        return self.text[start:stop]


def _between(ends: Tensor, index: int) -> tuple[int, int]:
    return 0 if index == 0 else int(ends[index - 1]), int(ends[index])


def _kind(settings: ShardSettings) -> type[Samples]:
    """The contents of shards with these settings."""
    if settings.text is not None:
        return CaptionedSamples
    return Samples if settings.classes is None else LabelledSamples


class ShardSet:
    """The shards of one or more folders; a shard is verified when first read, unless another process does so."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        if len({*map(os.path.realpath, folders)}) < len(folders):
            raise ValueError(f"Pass each folder of shards only once; got {self}.")
        manifests = [_manifest(folder) for folder in folders]
        for folder, manifest in zip(folders, manifests, strict=True):
            manifest.settings.require_same_encoders(manifests[0].settings, str(folder))
        if len({manifest.settings.dtype for manifest in manifests}) > 1:
            raise ValueError(f"The shards in {self} have different dtypes; prepare them with the same --dtype.")
        self.manifest = Manifest.joined(manifests)
        self.files = [f / shard.file for f, one in zip(folders, manifests, strict=True) for shard in one.shards]
        self._samples = lru_cache(OPEN)(self._read)
        self._verified: set[int] = set()

    def __str__(self) -> str:
        return " and ".join(map(str, self.folders))

    def __len__(self) -> int:
        return self.manifest.samples

    def check(self, number: int) -> None:
        """Verify the checksum of a shard, once."""
        if number not in self._verified:
            read_tensors(self.files[number], self.manifest.shards[number].sha256)
            self._verified.add(number)

    def read(self, number: int, check: bool = True) -> Samples:
        """The samples of a shard."""
        if check:
            self.check(number)
        return self._samples(number)

    def _read(self, number: int) -> Samples:
        shard, file = self.manifest.shards[number], self.files[number]
        try:
            samples = _kind(self.manifest.settings)(**read_tensors(file))
        except TypeError:
            raise ValueError(f"{file} does not hold what {MANIFEST} says; run `tmatch prepare` again.") from None
        if (len(samples), *samples.latents.shape[2:]) != (shard.samples, *shard.size):
            raise ValueError(f"The samples in {file} do not match {MANIFEST}; run `tmatch prepare` again.")
        return samples

    def null(self) -> Tensor:
        """The tokens of the empty caption."""
        return read_tensors(self.folders[0] / NULL, self.manifest.null)["text"]

    def require_files(self) -> None:
        """Raise if shards are missing, before a run reaches them."""
        found = {path for folder in self.folders for path in folder.iterdir()}
        if missing := [file for file in self.files if file not in found]:
            raise ValueError(
                f"{len(missing)} of the {len(self.files)} shards in {self} are missing, among them {missing[0]}; copy "
                "them again, or run `tmatch prepare` again to write them."
            )

    def require(self, settings: ShardSettings) -> None:
        """Raise unless the shards were encoded as those of these settings."""
        self.manifest.settings.require_same_encoders(settings, str(self))


def _manifest(folder: Path) -> Manifest:
    """The manifest of a folder of shards, of this format or an older one."""
    file = folder / MANIFEST
    if not file.is_file():
        raise ValueError(f"{folder} contains no complete set of shards: it has no {MANIFEST}; run `tmatch prepare`.")
    try:
        manifest = Manifest.model_validate_json(json.dumps(migrate_manifest(read_json(file))))
        if manifest.samples != (found := manifest.sizes().total()):
            raise ValueError(f"its shards have {found:,} samples instead of {manifest.samples:,}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is not a valid manifest ({first_line(error)}); run `tmatch prepare` again."
        ) from error
    if manifest.samples == 0:
        raise ValueError(f"{folder} contains no samples: every row was skipped, for the reasons in its skipped.jsonl.")
    return manifest


def read_tensors(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The memory-mapped tensors of a file, whose checksum is verified if given."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            if sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return load_file(path)
    except OSError as error:
        raise ValueError(f"The shard {path} cannot be read ({error.strerror}); run `tmatch prepare` again.") from error
    except (SafetensorError, ValueError):
        pass
    raise ValueError(f"The shard {path} is damaged or of another run; delete it and run `tmatch prepare` again.")


def is_complete(path: Path) -> bool:
    """Whether a file of tensors exists and is as long as its header says."""
    try:
        require_regular(path)
        with safe_open(path, "pt"):
            return True
    except (OSError, SafetensorError, ValueError):
        return False


def write_shard(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a file of tensors atomically and return its checksum."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()
