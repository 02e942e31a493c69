"""From pictures and captions to shards, a chunk of rows after the other."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from tmatch.data.pictures import pixels, read_picture
from tmatch.files import write_text
from tmatch.prepare.batches import Batches, Picture
from tmatch.prepare.crop import Size
from tmatch.prepare.manifest import Chunk, Manifest, Settings, Shard, Skipped
from tmatch.prepare.shards import MANIFEST, NULL, Samples, is_whole, write
from tmatch.prepare.source import Source
from tmatch.pretrained import PretrainedAutoencoder, PretrainedText
from tmatch.pretrained.identity import PRECISIONS

T = TypeVar("T")
Stale = dict[int, int | None]
"""Chunks that are to be made again, and when the records that they have were written."""
OVERFLOW = "its latent overflows"
PATIENCE = 1800
"""Seconds without a sign of life from other processes before they are given up."""


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
        self._records = out / "chunks"
        self.settings = settings
        self.digest = settings.digest()
        self.autoencoder = autoencoder
        self.text = text
        self.device = next(autoencoder.parameters()).device

    def run(self, workers: int = 4, rank: int = 0, world: int = 1, progress: bool = False) -> Manifest | None:
        """Make the chunks that are missing, and when all are there the manifest; only rank 0 has that to answer."""
        if len(self.source) == 0:
            raise ValueError(f"{self.source.name} lists no pictures.")
        self._require_same(rank)
        self._records.mkdir(parents=True, exist_ok=True)
        mine, pool = range(rank, self.chunks, world), ThreadPoolExecutor(workers)
        try:
            stale = self._stale(range(self.chunks) if rank == 0 else mine, pool)
            missing = [number for number in mine if number in stale or self._record(number) is None]
            if rank == 0 and (missing or stale):  # what is about to change is not vouched for
                (self.out / MANIFEST).unlink(missing_ok=True)
            pictures = self._pictures(missing, pool, 2 * self.settings.batch + workers)
            with Progress(console=Console(stderr=True), disable=not progress) as bar:
                shown = bar.add_task("chunks", total=len(mine), completed=len(mine) - len(missing))
                for number in missing:
                    self._record_file(number).unlink(missing_ok=True)
                    record = self.encode(number, islice(pictures, len(self._rows(number))))
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

    def _pictures(self, numbers: Sequence[int], pool: ThreadPoolExecutor, most: int) -> Iterator[Picture | Skipped]:
        """The pictures of some chunks in order; while some are encoded the next are read, `most` of them at a time."""
        ahead: deque[Future[Picture | Skipped]] = deque()
        for row in (row for number in numbers for row in self._rows(number)):
            ahead.append(pool.submit(self.picture, row))
            if len(ahead) == most:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def picture(self, row: int) -> Picture | Skipped:
        """Read a row, and cut its picture to size."""
        key = self.source.key(row)
        try:
            read = self.source.read(row)
            key = read.key
            image = read_picture(BytesIO(read.picture))
            cut = pixels(image, *self.settings.crop.choose(image))
        except ValueError as error:  # of one row, which must not end the run
            return Skipped(row=row, key=_printable(key), reason=_printable(str(error)))
        return Picture(row, cut, read.captions)

    def encode(self, number: int, pictures: Iterable[Picture | Skipped]) -> Chunk:
        """Write the shards of a chunk."""
        sizes: dict[Size, Batches] = {}
        skipped, shards, captions = list[Skipped](), list[Shard](), list[str]()
        for one in pictures:
            os.utime(self._records)  # a sign of life
            if isinstance(one, Skipped):
                skipped.append(one)
            else:
                size = (one.pixels.shape[1], one.pixels.shape[2])
                sizes.setdefault(size, Batches(self._latents, self.settings.batch)).add(one)
        for (height, width), batches in sorted(sizes.items(), key=lambda item: item[0]):
            latents = batches.latents()
            good = latents.isfinite().flatten(1).all(1).tolist()
            skipped += [
                Skipped(
                    row=row,
                    key=_printable(self.source.key(row)),
                    reason=f"{OVERFLOW}; --precision float32 and --dtype float32 hold the most",
                )
                for (row, _), fine in zip(batches.rows, good, strict=True)
                if not fine
            ]
            kept = [row for row, fine in zip(batches.rows, good, strict=True) if fine]
            if kept:
                whole = latents[torch.tensor(good)]
                whole = whole if self.autoencoder.codes is None else whole.int()
                samples = Samples.join(whole, self._conditions([texts for _, texts in kept]), [row for row, _ in kept])
                file = f"{number:06d}-{height}x{width}.safetensors"
                checksum = write(self.out / file, samples.tensors())
                shards.append(Shard(file=file, samples=len(kept), size=(*latents.shape[2:],), sha256=checksum))
                captions += [caption for _, texts in kept for caption in texts]
        return Chunk(
            settings=self.digest,
            shards=tuple(shards),
            skipped=tuple(sorted(skipped, key=lambda one: one.row)),
            captions=len(captions),
            captions_cut=sum(self.text.lengths([caption])[0] > self.text.longest for caption in captions),
        )

    def _latents(self, pictures: Tensor) -> Tensor:
        """As they are written; codes, which are not finite where the network overflows, as numbers still."""
        latents = self.autoencoder.encode(pictures.to(self.device).float() / 255).cpu()
        return latents if self.autoencoder.codes is not None else latents.to(PRECISIONS[self.settings.dtype])

    def _conditions(self, captions_of: Sequence[tuple[str, ...]]) -> list[list[Tensor]]:
        """The tokens of every caption of every picture; those of like length are encoded together, to pad little."""
        captions = [caption for texts in captions_of for caption in texts]
        by_length = sorted(range(len(captions)), key=lambda k: self.text.lengths([captions[k]])[0])
        dtype, tokens = PRECISIONS[self.settings.dtype], dict[int, Tensor]()
        for part in _parts(by_length, self.settings.batch):
            condition = self.text([captions[k] for k in part])
            os.utime(self._records)
            self._require_finite(condition.tokens, dtype)
            for k, row, there in zip(part, condition.tokens, condition.mask, strict=True):
                tokens[k] = row[there].to(dtype).cpu()
        rest = (tokens[k] for k in range(len(captions)))
        return [[next(rest) for _ in texts] for texts in captions_of]

    def _require_finite(self, tokens: Tensor, dtype: torch.dtype) -> None:
        """Refuse what a text encoder cannot compute, or shards cannot hold."""
        name, precision = self.text.name, self.text.precision
        if not tokens.isfinite().all():
            way = "take another one" if precision == "float32" else "give --precision float32"
            raise ValueError(f"{name} overflows in {precision}; {way}.")
        if not tokens.to(dtype).isfinite().all():
            raise ValueError(f"{name} makes values too large for {self.settings.dtype}; give --dtype float32.")

    def _record_file(self, number: int) -> Path:
        return self._records / f"{number:06d}.json"

    def _record(self, number: int) -> Chunk | None:
        """What became of a chunk, if it is done."""
        file = self._record_file(number)
        if not file.is_file():
            return None
        try:
            chunk = Chunk.model_validate_json(file.read_bytes())
        except (ValidationError, FileNotFoundError):  # which another process is writing anew
            return None
        if chunk.settings not in ("", self.digest):
            return None
        return chunk if all(is_whole(self.out / shard.file) for shard in chunk.shards) else None

    def _stale(self, numbers: Iterable[int], pool: ThreadPoolExecutor) -> Stale:
        """Chunks of which a row that was skipped can be used now, and when their records were written."""
        stale: Stale = {}
        for number in numbers:
            written, chunk = self._written(number), self._record(number)
            rows = () if chunk is None else [one.row for one in chunk.skipped if not one.reason.startswith(OVERFLOW)]
            if any(isinstance(one, Picture) for one in pool.map(self.picture, rows)):
                stale[number] = written
        return stale

    def _written(self, number: int) -> int | None:
        """When a chunk's record was; another process may be about to write it anew."""
        try:
            return self._record_file(number).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _fresh(self, number: int, stale: Stale) -> Chunk | None:
        """What became of a chunk; those that were stale are waited for."""
        waited_for = number in stale and self._written(number) in (None, stale[number])
        return None if waited_for else self._record(number)

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

    def _finish(self, stale: Stale) -> Manifest:
        """The manifest, once every chunk is there: other processes may be at work on some."""
        sign, since = 0, time.monotonic()
        while left := (done := [self._fresh(number, stale) for number in range(self.chunks)]).count(None):
            if sign != (sign := self._records.stat().st_mtime_ns):
                since = time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise ValueError(
                    f"{left} of {self.chunks} chunks are not there, and nothing was encoded for {PATIENCE // 60} "
                    "minutes: another process has stopped. The same command goes on."
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
