"""From pictures and captions to shards, a chunk of rows after the other."""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError
from rich.progress import Progress
from torch import Tensor

from tmatch.data.pictures import cut, read_picture
from tmatch.files import write_text
from tmatch.prepare.crop import Size
from tmatch.prepare.shards import MANIFEST, NULL, Chunk, Manifest, Samples, Settings, Shard, Skipped, is_whole, write
from tmatch.prepare.source import Source
from tmatch.pretrained import PretrainedAutoencoder, PretrainedText
from tmatch.pretrained.identity import PRECISIONS

T = TypeVar("T")
OVERFLOW = "its latent overflows"
PATIENCE = 1800
"""Seconds to wait for the next chunk of another process before giving it up."""


@dataclass(frozen=True)
class Picture:
    """A row that can be used: its picture, cut to a size, (3, height, width) uint8, and its captions."""

    row: int
    pixels: Tensor
    captions: tuple[str, ...]


class Preparation:
    """Encodes a source into `out`; killed at any moment and started again, it ends with the same bytes.

    A chunk of rows is written as one shard for each size of its pictures, and then a record, by which it is known to be
    done; where a skipped row was mended since, it is made again. Several processes may share the work: of `world`, the
    one of this `rank` takes every `world`-th chunk.
    """

    def __init__(
        self, source: Source, out: Path, settings: Settings, autoencoder: PretrainedAutoencoder, text: PretrainedText
    ) -> None:
        self.source = source
        self.out = out
        self.settings = settings
        self.autoencoder = autoencoder
        self.text = text
        self.device = next(autoencoder.parameters()).device

    def run(self, workers: int = 4, rank: int = 0, world: int = 1, progress: bool = False) -> Manifest | None:
        """Make the chunks that are missing, and when all are there the manifest; only rank 0 has that to answer."""
        if len(self.source) == 0:
            raise ValueError(f"{self.source.name} lists no pictures.")
        self._require_same(rank)
        mine, pool = range(rank, self.chunks, world), ThreadPoolExecutor(workers)
        try:
            stale = self._stale(range(self.chunks) if rank == 0 else mine, pool)
            missing = [number for number in mine if number in stale or self._record(number) is None]
            if rank == 0 and (missing or stale):  # what is about to change is not vouched for
                (self.out / MANIFEST).unlink(missing_ok=True)
            with Progress(disable=not progress) as bar:
                shown = bar.add_task("chunks", total=len(mine), completed=len(mine) - len(missing))
                for number, pictures in self._pictures(missing, pool):
                    self._record_file(number).unlink(missing_ok=True)
                    record = self.encode(number, pictures)
                    write_text(self._record_file(number), record.model_dump_json() + "\n")
                    bar.advance(shown)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # what is being read for later is not waited for
        return self._finish(stale) if rank == 0 else None

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-len(self.source) // self.settings.chunk)

    def _rows(self, number: int) -> range:
        first = number * self.settings.chunk
        return range(first, min(first + self.settings.chunk, len(self.source)))

    def _pictures(
        self, numbers: Sequence[int], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, list[Picture | Skipped]]]:
        """The pictures of one chunk after the other; while one is encoded the next is read."""
        ahead: list[tuple[int, list[Future[Picture | Skipped]]]] = []
        for number in numbers:
            ahead.append((number, [pool.submit(self.picture, row) for row in self._rows(number)]))
            if len(ahead) == 2:
                ready, pictures = ahead.pop(0)
                yield ready, [picture.result() for picture in pictures]
        for ready, pictures in ahead:
            yield ready, [picture.result() for picture in pictures]

    def picture(self, row: int) -> Picture | Skipped:
        """Read a row, and cut its picture to size."""
        key = self.source.key(row)
        try:
            read = self.source.read(row)
            key = read.key
            image = read_picture(BytesIO(read.picture))
            pixels = (cut(image, *self.settings.crop.choose(image)) * 255).round().to(torch.uint8)
        except ValueError as error:  # of one row, which must not end the run
            return Skipped(row=row, key=_printable(key), reason=_printable(str(error)))
        return Picture(row, pixels, read.captions)

    def encode(self, number: int, pictures: Sequence[Picture | Skipped]) -> Chunk:
        """Write the shards of a chunk."""
        sizes: dict[Size, list[Picture]] = {}
        skipped = [one for one in pictures if isinstance(one, Skipped)]
        for one in pictures:
            if isinstance(one, Picture):
                sizes.setdefault((one.pixels.shape[1], one.pixels.shape[2]), []).append(one)
        shards, captions = [], []
        for (height, width), group in sorted(sizes.items()):
            dtype = PRECISIONS[self.settings.dtype] if self.autoencoder.codes is None else torch.float32
            latents = self._latents([one.pixels for one in group]).to(dtype)
            good = latents.isfinite().flatten(1).all(1)
            skipped += [
                Skipped(row=one.row, key=_printable(self.source.key(one.row)), reason=OVERFLOW)
                for one, fine in zip(group, good.tolist(), strict=True)
                if not fine
            ]
            kept = [one for one, fine in zip(group, good.tolist(), strict=True) if fine]
            if kept:
                whole = latents[good] if self.autoencoder.codes is None else latents[good].int()
                samples = Samples.join(whole, self._conditions(kept), [one.row for one in kept])
                file = f"{number:06d}-{height}x{width}.safetensors"
                checksum = write(self.out / file, samples.tensors())
                size = (latents.shape[2], latents.shape[3])
                shards.append(Shard(file=file, samples=len(kept), size=size, sha256=checksum))
                captions += [caption for one in kept for caption in one.captions]
        return Chunk(
            shards=tuple(shards),
            skipped=tuple(sorted(skipped, key=lambda one: one.row)),
            captions=len(captions),
            captions_cut=sum(self.text.length(caption) > self.text.longest for caption in captions),
        )

    def _latents(self, pictures: Sequence[Tensor]) -> Tensor:
        encoded = [
            self.autoencoder.encode(torch.stack([*part]).to(self.device).float() / 255).cpu()
            for part in _parts(pictures, self.settings.batch)
        ]
        return torch.cat(encoded)

    def _conditions(self, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        """The tokens of every caption of every picture; those of like length are encoded together, to pad little."""
        captions = [caption for one in pictures for caption in one.captions]
        by_length = sorted(range(len(captions)), key=lambda k: self.text.length(captions[k]))
        dtype, tokens = PRECISIONS[self.settings.dtype], dict[int, Tensor]()
        for part in _parts(by_length, self.settings.batch):
            condition = self.text([captions[k] for k in part])
            if not condition.tokens.to(dtype).isfinite().all():
                encoder, kind = self.text.name, self.settings.dtype
                raise ValueError(f"{encoder} makes values too large for {kind}; give --dtype float32.")
            for k, row, there in zip(part, condition.tokens, condition.mask, strict=True):
                tokens[k] = row[there].to(dtype).cpu()
        rest = (tokens[k] for k in range(len(captions)))
        return [[next(rest) for _ in one.captions] for one in pictures]

    def _record_file(self, number: int) -> Path:
        return self.out / "chunks" / f"{number:06d}.json"

    def _record(self, number: int) -> Chunk | None:
        """What became of a chunk, if it is done."""
        file = self._record_file(number)
        if not file.is_file():
            return None
        try:
            chunk = Chunk.model_validate_json(file.read_bytes())
        except ValidationError:
            return None
        return chunk if all(is_whole(self.out / shard.file) for shard in chunk.shards) else None

    def _stale(self, numbers: Iterable[int], pool: ThreadPoolExecutor) -> dict[int, int]:
        """Chunks of which a row that was skipped can be used now, and when their records were written."""
        stale = {}
        for number in numbers:
            chunk = self._record(number)
            rows = () if chunk is None else [one.row for one in chunk.skipped if one.reason != OVERFLOW]
            if any(isinstance(one, Picture) for one in pool.map(self.picture, rows)):
                stale[number] = self._record_file(number).stat().st_mtime_ns
        return stale

    def _fresh(self, number: int, stale: dict[int, int]) -> Chunk | None:
        """What became of a chunk; those that were stale are waited for."""
        try:
            if number in stale and self._record_file(number).stat().st_mtime_ns == stale[number]:
                return None
        except FileNotFoundError:
            return None
        return self._record(number)

    def _require_same(self, rank: int) -> None:
        """Write the settings, or refuse to go on with others."""
        file = self.out / "settings.json"
        if file.is_file():
            try:
                then = Settings.model_validate_json(file.read_bytes())
            except ValidationError as error:
                raise ValueError(f"{file} is damaged, or of another version; give a new folder.") from error
            now = self.settings if then.contents else self.settings.model_copy(update={"contents": ""})  # an older one
            if changed := then.differs(now):
                raise ValueError(
                    f"{self.out} holds shards with another {' and '.join(changed)}; give a new folder, or the old "
                    "settings."
                )
            if rank == 0 and then != now:  # encoders lie elsewhere now, or the licence is known
                write_text(file, now.model_dump_json(indent=2) + "\n")
        elif rank == 0:
            write_text(file, self.settings.model_dump_json(indent=2) + "\n")

    def _finish(self, stale: dict[int, int]) -> Manifest:
        """The manifest, once every chunk is there: other processes may be at work on some."""
        missing, since = self.chunks + 1, time.monotonic()
        while left := (done := [self._fresh(number, stale) for number in range(self.chunks)]).count(None):
            if left < missing:
                missing, since = left, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise ValueError(
                    f"{left} of {self.chunks} chunks are not there, and none has come for {PATIENCE // 60} minutes: "
                    "another process has stopped. The same command goes on."
                )
            time.sleep(1)
        chunks = [chunk for chunk in done if chunk is not None]
        null = self.text.null()
        checksum = write(
            self.out / NULL, {"text": null.tokens[0][null.mask[0]].to(PRECISIONS[self.settings.dtype]).cpu()}
        )
        skipped = [one.model_dump_json() for chunk in chunks for one in chunk.skipped]
        write_text(self.out / "skipped.jsonl", "".join(f"{line}\n" for line in skipped))
        if not any(chunk.shards for chunk in chunks):
            raise ValueError(f"No row of {self.source.name} can be used; {self.out / 'skipped.jsonl'} says why.")
        manifest = Manifest.of(self.settings, chunks, checksum)
        write_text(self.out / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        return manifest


def _printable(text: str) -> str:
    """A text that any file can hold."""
    return text.encode(errors="backslashreplace").decode()


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))
