"""Shards: encoded images and captions in safetensors, with a manifest that says what they are."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from tmatch.data.manifest import AutoencoderIdentity, Manifest, Settings, TextIdentity
from tmatch.files import write_bytes

MANIFEST = "manifest.json"
NULL = "null.safetensors"
OPEN = 1024
"""Shards that are open at a time at most: a system maps only so many files."""


@dataclass(frozen=True)
class Samples:
    """The contents of a shard: latents, and for each one or more captions."""

    latents: Tensor  # (n, channels, height, width), or whole numbers where they are codes
    text: Tensor  # (tokens, width): those of all captions, one after the other
    text_ends: Tensor  # for each caption, where its tokens end
    caption_ends: Tensor  # for each sample, where its captions end
    rows: Tensor  # of the source

    @classmethod
    def join(cls, latents: Tensor, conditions: Sequence[Sequence[Tensor]], rows: Sequence[int]) -> "Samples":
        """From latents and the tokens (length, width) of each caption of each."""
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
        """By name, as in the file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def caption(self, sample: int, turn: int) -> Tensor:
        """The tokens of one of a sample's captions: they take turns."""
        first, end = _between(self.caption_ends, sample)
        start, stop = _between(self.text_ends, first + turn % (end - first))
        return self.text[start:stop]


def _between(ends: Tensor, index: int) -> tuple[int, int]:
    return 0 if index == 0 else int(ends[index - 1]), int(ends[index])


class ShardSet:
    """The shards of one or more folders; each is checked when it is first read, unless another process does that."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise ValueError(f"{self} are not all different: each folder of shards is given once.")
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
        """Hold a shard against its checksum, the first time."""
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
                    f"{file.parent / MANIFEST} says another number or size of the samples in {shard.file} than there "
                    "are; prepare the data again, which writes it anew."
                )
            if len(self._open) >= OPEN:
                del self._open[next(iter(self._open))]  # the first that was opened
            self._open[number] = samples
        return self._open[number]

    def null(self) -> Tensor:
        """The tokens of the empty caption."""
        return _verified(self.folders[0] / NULL, self.manifest.null)["text"]

    def require_files(self) -> None:
        """Refuse folders that have less than is listed, now and not when a run comes to what is missing."""
        there = {path for folder in self.folders for path in folder.iterdir()}
        if missing := [file for file in self.files if file not in there]:
            folder = missing[0].parent
            gone, listed = (sum(file.parent == folder for file in files) for files in (missing, self.files))
            raise ValueError(
                f"{gone} of the {listed} shards that {folder / MANIFEST} lists are not there, {missing[0].name} among "
                "them: copy them again, or prepare the data again, which writes what is missing."
            )

    def require(self, autoencoder: AutoencoderIdentity, text: TextIdentity) -> None:
        """Refuse shards of other encoders than these."""
        settings = self.manifest.settings
        for kind, own, given, differs in (
            ("autoencoder", settings.autoencoder, autoencoder, settings.autoencoder.differs(autoencoder)),
            ("text encoder", settings.text, text, settings.text.differs(text)),
        ):
            if differs:
                raise ValueError(
                    f"The shards of {self} were made with the {kind} {own.name}, and this is {given.name}, "
                    f"with {differs}; prepare the data with it, or take the one they were made with."
                )


def _manifest(folder: Path) -> Manifest:
    """Of a folder of shards."""
    file = folder / MANIFEST
    if not file.is_file():
        raise ValueError(f"{folder} holds no finished shards: it has no {MANIFEST}; make them with tmatch prepare.")
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except ValidationError as error:
        detail = error.errors()[0]
        reason = ": ".join(filter(None, (".".join(map(str, detail["loc"])), detail["msg"])))
        raise ValueError(f"{file} is not a manifest of this version ({reason}); prepare the data anew.") from error
    if manifest.samples == 0:
        raise ValueError(f"{folder} holds no samples: every row was skipped, for the reasons in its skipped.jsonl.")
    if manifest.samples != sum(shard.samples for shard in manifest.shards):
        raise ValueError(f"{file} does not add up to its samples; prepare the data again, which writes it anew.")
    return manifest


def _require_alike(folder: Path, settings: Settings, other: Path, others: Settings) -> None:
    """Refuse to mix what other encoders made, or what is kept in another precision."""
    kinds = (("autoencoder", settings.autoencoder, others.autoencoder), ("text encoder", settings.text, others.text))
    differ = [f"{kind}, with {what}" for kind, one, two in kinds if (what := one.differs(two))]  # type: ignore[arg-type]
    if settings.dtype != others.dtype:
        differ.append(f"dtype, {others.dtype} for {settings.dtype}")
    if differ:
        raise ValueError(
            f"The shards of {other} have another {' and another '.join(differ)} than those of {folder}; prepare both "
            "alike to train on them together."
        )


def _verified(path: Path, sha256: str | None) -> dict[str, Tensor]:
    """A file of tensors that is just as it was written, if it is to be checked; what is not used stays on the disk."""
    try:
        with path.open("rb") as file:
            same = sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sha256
        if same:
            return load_file(path)
    except OSError as error:
        raise ValueError(f"The shard {path} cannot be read: {error.strerror}; prepare the data again.") from error
    except SafetensorError:  # it was whole before
        pass
    raise ValueError(f"The shard {path} is damaged, or of another run; remove it and prepare the data again.")


def is_whole(path: Path) -> bool:
    """Whether a file of tensors is there and as long as its header says."""
    try:
        with safe_open(path, "pt"):
            return True
    except (OSError, SafetensorError):
        return False


def write(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a file of tensors, whole or not at all; its checksum."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()
