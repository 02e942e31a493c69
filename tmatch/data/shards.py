"""Data shards: encoded images and captions in safetensors files, described by a manifest."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from tmatch.data.manifest import AutoencoderIdentity, Manifest, ShardSettings, TextIdentity
from tmatch.files import write_bytes
from tmatch.migrate import migrate_manifest

MANIFEST = "manifest.json"
NULL = "null.safetensors"
OPEN = 1024
"""The maximum number of shards open at a time, since a process can map only so many files."""


@dataclass(frozen=True)
class Samples:
    """The contents of a shard: latents with one or more captions each."""

    latents: Tensor  # (n, channels, height, width), or integer codes
    text: Tensor  # (tokens, width): the tokens of all captions, concatenated
    text_ends: Tensor  # the end of each caption in text
    caption_ends: Tensor  # the end of each sample's captions in text_ends
    rows: Tensor  # row numbers in the source

    @classmethod
    def join(cls, latents: Tensor, conditions: Sequence[Sequence[Tensor]], rows: Sequence[int]) -> "Samples":
        """From latents, and the tokens (length, width) of every caption of each."""
        captions = [caption for sample in conditions for caption in sample]
        return cls(
            latents,
            torch.cat(captions),
            torch.tensor([len(caption) for caption in captions]).cumsum(0),
            torch.tensor([len(sample) for sample in conditions]).cumsum(0),
            torch.tensor(rows),
        )

    def __len__(self) -> int:
        return len(self.latents)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, as in the file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def caption(self, sample: int, turn: int) -> Tensor:
        """The tokens of one of a sample's captions, which are used in turn."""
        first, end = _between(self.caption_ends, sample)
        start, stop = _between(self.text_ends, first + turn % (end - first))
        return self.text[start:stop]


def _between(ends: Tensor, index: int) -> tuple[int, int]:
    return 0 if index == 0 else int(ends[index - 1]), int(ends[index])


class ShardSet:
    """The shards of one or more folders; a shard is verified when first read, unless another process does so."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise ValueError(f"The same folder of shards is given twice: {self}.")
        manifests = [_manifest(folder) for folder in folders]
        for folder, manifest in zip(folders[1:], manifests[1:], strict=True):
            _require_alike(folders[0], manifests[0].settings, folder, manifest.settings)
        self.manifest = Manifest.joined(manifests)
        self.files = [f / shard.file for f, one in zip(folders, manifests, strict=True) for shard in one.shards]
        self._open: dict[int, Samples] = {}
        self._seen: set[int] = set()

    def __str__(self) -> str:
        return " and ".join(map(str, self.folders))

    def __len__(self) -> int:
        return self.manifest.samples

    def check(self, number: int) -> None:
        """Verify the checksum of a shard, once."""
        if number not in self._seen:
            _verified(self.files[number], self.manifest.shards[number].sha256)
            self._seen.add(number)

    def read(self, number: int, check: bool = True) -> Samples:
        """The samples of a shard."""
        if check:
            self.check(number)
        if number not in self._open:
            shard, file = self.manifest.shards[number], self.files[number]
            samples = Samples(**_verified(file, None))
            if (len(samples), *samples.latents.shape[2:]) != (shard.samples, *shard.size):
                raise ValueError(
                    f"The number or size of the samples in {shard.file} does not match {file.parent / MANIFEST}; run "
                    "`tmatch prepare` again."
                )
            if len(self._open) >= OPEN:
                del self._open[next(iter(self._open))]  # the oldest
            self._open[number] = samples
        return self._open[number]

    def null(self) -> Tensor:
        """The tokens of the empty caption."""
        return _verified(self.folders[0] / NULL, self.manifest.null)["text"]

    def require_files(self) -> None:
        """Raise if shards are missing, before a run reaches them."""
        found = {path for folder in self.folders for path in folder.iterdir()}
        if missing := [file for file in self.files if file not in found]:
            folder = missing[0].parent
            count, total = (sum(file.parent == folder for file in files) for files in (missing, self.files))
            raise ValueError(
                f"{count} of the {total} shards listed in {folder / MANIFEST} are missing, among them "
                f"{missing[0].name}; copy them again, or run `tmatch prepare` again to write them."
            )

    def require(self, autoencoder: AutoencoderIdentity, text: TextIdentity) -> None:
        """Raise unless the shards were made by these encoders."""
        settings = self.manifest.settings
        for kind, own, given, differs in (
            ("autoencoder", settings.autoencoder, autoencoder, settings.autoencoder.differs(autoencoder)),
            ("text encoder", settings.text, text, settings.text.differs(text)),
        ):
            if differs:
                raise ValueError(
                    f"The shards in {self} were encoded with the {kind} {own.name}, but {given.name} has {differs}; "
                    "use the original one, or prepare the data again."
                )


def _manifest(folder: Path) -> Manifest:
    """The manifest of a folder of shards, of this format or an older one."""
    file = folder / MANIFEST
    if not file.is_file():
        raise ValueError(f"{folder} contains no complete set of shards: it has no {MANIFEST}; run `tmatch prepare`.")
    try:
        manifest = Manifest.model_validate_json(json.dumps(migrate_manifest(json.loads(file.read_bytes()))))
    except ValidationError as error:
        detail = error.errors()[0]
        reason = f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
        raise ValueError(f"{file} is not a valid manifest ({reason}); run `tmatch prepare` again.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a valid manifest ({error!r}); run `tmatch prepare` again.") from error
    if manifest.samples == 0:
        raise ValueError(f"{folder} contains no samples: every row was skipped, for the reasons in its skipped.jsonl.")
    if manifest.samples != sum(shard.samples for shard in manifest.shards):
        raise ValueError(f"The samples of the shards in {file} do not add up; run `tmatch prepare` again.")
    return manifest


def _require_alike(folder: Path, settings: ShardSettings, other: Path, others: ShardSettings) -> None:
    """Raise if two folders differ in encoders or precision."""
    kinds = (("autoencoder", settings.autoencoder, others.autoencoder), ("text encoder", settings.text, others.text))
    differ = [f"{kind}, with {what}" for kind, one, two in kinds if (what := one.differs(two))]  # type: ignore[arg-type]
    if settings.dtype != others.dtype:
        differ.append(f"dtype, {others.dtype} for {settings.dtype}")
    if differ:
        raise ValueError(
            f"The shards in {other} have another {' and another '.join(differ)} than those in {folder}; prepare both "
            "with the same settings to train on them together."
        )


def _verified(path: Path, sha256: str | None) -> dict[str, Tensor]:
    """The memory-mapped tensors of a file, whose checksum is verified if given."""
    try:
        with path.open("rb") as file:
            same = sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sha256
        if same:
            return load_file(path)
    except OSError as error:
        raise ValueError(f"The shard {path} cannot be read ({error.strerror}); run `tmatch prepare` again.") from error
    except SafetensorError:
        pass
    raise ValueError(
        f"The shard {path} is damaged or belongs to another run; delete it and run `tmatch prepare` again."
    )


def is_complete(path: Path) -> bool:
    """Whether a file of tensors exists and is as long as its header says."""
    try:
        with safe_open(path, "pt"):
            return True
    except (OSError, SafetensorError):
        return False


def write_shard(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a file of tensors atomically and return its checksum."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()
