"""From images and captions to shards, a chunk of rows after the other."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.conditioning.transformers import PretrainedText
from tmatch.data.crop import Size
from tmatch.data.images import pixels, read_image
from tmatch.data.manifest import Chunk, Manifest, Settings, Shard, Skipped
from tmatch.data.shards import MANIFEST, NULL, Samples, is_whole, write
from tmatch.data.sources.source import Source, told
from tmatch.files import write_text
from tmatch.hub import ENCODER_DTYPES
from tmatch.prepare.buffer import EncodeBuffer, Encoded, Image
from tmatch.prepare.records import Records

T = TypeVar("T")
OVERFLOW = "its latent overflows"
TIMEOUT = 1800
"""Seconds without a sign of life from other processes before they are given up."""

AHEAD = 2**29
"""Bytes of pixels that are read before they are needed, at most."""


class Preparation:
    """Encodes a source into `out`; killed at any moment and started again, it ends with the same bytes.

    A chunk of rows is written as one shard for each size of its images, and then a record, by which it is known to be
    done. Several processes may share the work: of `world`, the one of this `rank` takes every `world`-th chunk. When
    all chunks are there the first process looks again at rows that were skipped by commands before this one, and makes
    chunks with mended ones anew.
    """

    def __init__(
        self, source: Source, out: Path, settings: Settings, autoencoder: PretrainedAutoencoder, text: PretrainedText
    ) -> None:
        self.source = source
        self.out = out
        self.records = Records(out)
        self.settings = settings
        self.autoencoder = autoencoder
        self.text = text
        self.device = next(autoencoder.parameters()).device
        self._listings: dict[int, str] = {}
        self._begun = False

    def run(self, workers: int = 4, rank: int = 0, world: int = 1, progress: bool = False) -> Manifest | None:
        """Make the chunks that are missing, and when all are there the manifest; only rank 0 has that to answer."""
        if len(self.source) == 0:
            raise ValueError(f"{self.source.name} lists no images.")
        self.records.begin(self.settings, rank)
        mine, pool = range(rank, self.chunks, world), ThreadPoolExecutor(workers)
        try:
            looked_at, doing = range(self.chunks) if rank == 0 else mine, f"{self.out} is being held against its source"
            done = self._done(told(looked_at, doing, "chunks"))
            before = dict(done)
            with Progress(console=Console(stderr=True), disable=not progress) as bar:
                missing = [number for number in mine if number not in done]
                shown = bar.add_task("chunks", total=len(mine), completed=len(mine) - len(missing))
                for number, chunk in self._made(missing, pool, workers):
                    done[number] = chunk
                    bar.advance(shown)
            if rank > 0:
                return None
            self._wait(done)
            done |= self._made(self._mended(before, pool), pool, workers)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # what is being read for later is not waited for
        return self._finish([done[number] for number in range(self.chunks)])

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-len(self.source) // self.settings.chunk)

    @property
    def digest(self) -> str:
        """Of the settings."""
        return self.settings.digest()

    def _rows(self, number: int) -> range:
        first = number * self.settings.chunk
        return range(first, min(first + self.settings.chunk, len(self.source)))

    def _listed(self, number: int) -> str:
        """What the source lists for a chunk, as it was when that was first asked for."""
        if number not in self._listings:
            self._listings[number] = self.source.listed(self._rows(number))
        return self._listings[number]

    def _made(self, numbers: Sequence[int], pool: ThreadPoolExecutor, workers: int) -> Iterator[tuple[int, Chunk]]:
        """Make some chunks, one after the other, and say so when they are written."""
        if numbers:  # what is about to change is not vouched for
            (self.out / MANIFEST).unlink(missing_ok=True)
        size, least = self.settings.crop.size, self.settings.batch + workers
        images = self._images(numbers, pool, max(least, min(self.settings.chunk, AHEAD // (3 * size**2))))
        with ThreadPoolExecutor(1) as writer:  # of one chunk, while the next is encoded; it is waited for at the end
            writing: Future[tuple[int, Chunk]] | None = None
            for number in numbers:
                encoded = self.encode(islice(images, len(self._rows(number))))
                if writing is not None:
                    yield writing.result()
                writing, self._begun = writer.submit(self._written, number, encoded), True
            if writing is not None:
                yield writing.result()

    def _images(self, numbers: Sequence[int], pool: ThreadPoolExecutor, most: int) -> Iterator[Image | Skipped]:
        """The images of some chunks in order; while some are encoded the next are read, `most` of them at a time."""
        ahead: deque[Future[Image | Skipped]] = deque()
        for number in numbers:
            self._listed(number)  # before its rows are read, so that the next command sees what changes meanwhile
            for row in self._rows(number):
                ahead.append(pool.submit(self.image, row))
                if len(ahead) == most:
                    yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def image(self, row: int) -> Image | Skipped:
        """Read a row, and cut its image to size."""
        key, crop = self.source.key(row), self.settings.crop
        try:
            read = self.source.read(row)
            key = read.key
            image = read_image(BytesIO(read.image), at_least=max(2 * max(map(max, crop.sizes)), crop.smallest))
            cut = pixels(image, *crop.choose(image))
        except ValueError as error:  # of one row, which must not end the run
            return Skipped(row=row, key=_printable(key), reason=_printable(str(error)))
        return Image(row, cut, read.captions)

    def encode(self, images: Iterable[Image | Skipped]) -> Encoded:
        """The latents and texts of a chunk."""
        sizes: dict[Size, EncodeBuffer] = {}
        samples, skipped, cut = dict[Size, Samples](), list[Skipped](), 0
        for one in images:
            self.records.heartbeat()
            if isinstance(one, Skipped):
                skipped.append(one)
            else:
                size = (one.pixels.shape[1], one.pixels.shape[2])
                sizes.setdefault(size, EncodeBuffer(self._latents, self.settings.batch)).add(one)
        for size, batches in sorted(sizes.items(), key=lambda item: item[0]):
            latents = batches.latents()
            good = latents.isfinite().flatten(1).all(1).tolist()
            kept = [row for row, fine in zip(batches.rows, good, strict=True) if fine]
            skipped += [self._overflown(row) for (row, _), fine in zip(batches.rows, good, strict=True) if not fine]
            if kept:
                whole = latents[torch.tensor(good)]
                whole = whole if self.autoencoder.codebook_size is None else whole.int()
                conditions, longer = self._conditions([texts for _, texts in kept])
                samples[size] = Samples.join(whole, conditions, [row for row, _ in kept])
                cut += longer
        return Encoded(samples, sorted(skipped, key=lambda one: one.row), cut)

    def _overflown(self, row: int) -> Skipped:
        reason = f"{OVERFLOW}; --precision float32 and --dtype float32 hold the most"
        return Skipped(row=row, key=_printable(self.source.key(row)), reason=reason)

    def _latents(self, images: Tensor) -> Tensor:
        """As they are written; codes, which are not finite where the network overflows, as numbers still."""
        with self._fitting(self.autoencoder.name, len(images), "images"):
            latents = self.autoencoder.encode(images.to(self.device).float() / 255).cpu()
        return latents if self.autoencoder.codebook_size else latents.to(ENCODER_DTYPES[self.settings.dtype])

    def _conditions(self, captions_of: Sequence[tuple[str, ...]]) -> tuple[list[list[Tensor]], int]:
        """The tokens of every caption of every image, and how many captions are longer than what is read.

        Those of like length are encoded together, to pad little.
        """
        captions = [caption for texts in captions_of for caption in texts]
        lengths, tokens = self.text.lengths(captions), dict[int, Tensor]()
        for part in _parts(sorted(range(len(captions)), key=lengths.__getitem__), self.settings.batch):
            with self._fitting(self.text.name, len(part), "captions"):
                condition = self.text([captions[k] for k in part])
                encoded, mask = self._held(condition.tokens), condition.mask.cpu()
            self.records.heartbeat()
            tokens |= {k: row[there] for k, row, there in zip(part, encoded, mask, strict=True)}
        rest = (tokens[k] for k in range(len(captions)))
        longer = sum(length > self.text.max_length for length in lengths)
        return [[next(rest) for _ in texts] for texts in captions_of], longer

    def _held(self, tokens: Tensor) -> Tensor:
        """Tokens as they are written; what a text encoder cannot compute, or shards cannot hold, is refused."""
        locked = tokens.to(ENCODER_DTYPES[self.settings.dtype]).cpu()
        if locked.isfinite().all():
            return locked
        name, precision = self.text.name, self.text.precision
        if tokens.isfinite().all():
            advice = self._advice("--dtype float32")
            raise ValueError(f"{name} makes values too large for {self.settings.dtype}; {advice}.")
        advice = "take another one" if precision == "float32" else self._advice("--text-precision float32")
        raise ValueError(f"{name} overflows in {precision}; {advice}.")

    @contextmanager
    def _fitting(self, name: str, many: int, what: str) -> Iterator[None]:
        """Say what to do where a device has too little memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            advice = self._advice("a smaller --batch" if self.settings.batch > 1 else "--device cpu")
            raise ValueError(f"{name} does not fit in memory with {many} {what} at once; {advice}.") from error

    def _advice(self, option: str) -> str:
        """To give an option; chunks that were made without it stay as they are."""
        return f"give {option}{' and a new folder' if self._begun or self.records else ''}"

    def _written(self, number: int, encoded: Encoded) -> tuple[int, Chunk]:
        """Write the shards of a chunk, and then its record."""
        self.records.forget(number)
        shards = []
        for (height, width), samples in encoded.samples.items():
            file = f"{number:06d}-{height}x{width}.safetensors"
            checksum = write(self.out / file, samples.tensors())
            size = (samples.latents.shape[2], samples.latents.shape[3])
            shards.append(Shard(file=file, samples=len(samples), size=size, sha256=checksum))
        chunk = Chunk(
            settings=self.digest,
            listed=self._listed(number),
            shards=tuple(shards),
            skipped=tuple(encoded.skipped),
            captions=sum(len(samples.text_ends) for samples in encoded.samples.values()),
            captions_cut=encoded.captions_cut,
        )
        self.records.write(number, chunk)
        return number, chunk

    def _done(self, numbers: Iterable[int]) -> dict[int, Chunk]:
        """Those of some chunks that are there, whole, and of the rows as the source lists them."""
        done = {}
        for number in numbers:
            chunk = self.records.read(number)
            if chunk is None or chunk.settings not in ("", self.digest):
                continue
            same = chunk.listed in ("", self._listed(number))
            if same and all(is_whole(self.out / shard.file) for shard in chunk.shards):
                done[number] = chunk
        return done

    def _mended(self, chunks: dict[int, Chunk], pool: ThreadPoolExecutor) -> list[int]:
        """Chunks of which a row that was skipped can be used now."""
        mended = []
        for number, chunk in chunks.items():
            rows = [one.row for one in chunk.skipped if not one.reason.startswith(OVERFLOW)]
            if any(isinstance(one, Image) for one in pool.map(self.image, rows)):
                mended.append(number)
        return mended

    def _wait(self, done: dict[int, Chunk]) -> None:
        """Until every chunk is there: other processes may be at work on some."""
        sign, since = 0, time.monotonic()
        while missing := [number for number in range(self.chunks) if number not in done]:
            if found := self._done(missing):
                done |= found
                continue
            if sign != (sign := self.records.changed()):
                since = time.monotonic()
            if time.monotonic() - since > TIMEOUT:
                raise ValueError(
                    f"{len(missing)} of {self.chunks} chunks are not there, and nothing was encoded for "
                    f"{TIMEOUT // 60} minutes: another process has stopped. The same command goes on."
                )
            time.sleep(1)

    def _finish(self, chunks: Sequence[Chunk]) -> Manifest:
        """The manifest of all chunks, the rows that were skipped, and the empty caption."""
        null = self.text([self.text.null])
        checksum = write(
            self.out / NULL, {"text": null.tokens[0][null.mask[0]].to(ENCODER_DTYPES[self.settings.dtype]).cpu()}
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
