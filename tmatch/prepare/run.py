"""Encoding a source into shards, one chunk of rows after another."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.conditioning.transformers import PretrainedText
from tmatch.data.crop import Size
from tmatch.data.images import center_crop
from tmatch.data.manifest import Chunk, Manifest, Shard, ShardSettings, Skipped
from tmatch.data.progress import progress_bar
from tmatch.data.shards import MANIFEST, NULL, Samples, is_complete, write_shard
from tmatch.data.sources.source import Source
from tmatch.files import locked, write_text
from tmatch.hub import ENCODER_DTYPES
from tmatch.prepare.conditions import ConditionedRow, conditions_for
from tmatch.prepare.records import Records

OVERFLOW = "the latent overflows; --precision float32 and --dtype float32 have the largest range"
AHEAD = 2**29
"""The maximum number of bytes of pixels that are read ahead."""
EncodedChunk = tuple[dict[Size, Samples], list[Skipped], int]


class CroppedImage(NamedTuple):
    """A usable row: its image, cropped, (3, height, width) uint8, and what it is trained with."""

    pixels: Tensor
    row: ConditionedRow


class EncodeBuffer:
    """Images of one size, encoded as soon as they fill a batch, so that few are held as pixels."""

    def __init__(self, encode: Callable[[Tensor], Tensor], batch_size: int) -> None:
        self.encode = encode
        self.batch_size = batch_size
        self.rows: list[ConditionedRow] = []
        self._waiting: list[Tensor] = []
        self._latents: list[Tensor] = []

    def add(self, image: CroppedImage) -> None:
        """Add an image; its row is kept in `rows`."""
        self.rows.append(image.row)
        self._waiting.append(image.pixels)
        if len(self._waiting) == self.batch_size:
            self._flush()

    def latents(self) -> Tensor:
        """The latents of all images added."""
        if self._waiting:
            self._flush()
        return torch.cat(self._latents)

    def _flush(self) -> None:
        self._latents.append(self.encode(torch.stack(self._waiting)))
        self._waiting.clear()


class Preparation:
    """Encodes a source into the folder `out`; killed and restarted at any time, it writes the same bytes.

    A chunk of rows becomes one shard per image size, and then a record, which marks the chunk as complete. Several
    processes can share the work: of `world`, each takes every `world`-th chunk, and the one that finds all chunks
    complete in the end writes the manifest.
    """

    def __init__(
        self, source: Source, out: Path, settings: ShardSettings, autoencoder: PretrainedAutoencoder,
        text: PretrainedText | None = None,
    ) -> None:  # fmt: skip
        self.source = source
        self.out = out
        self.records = Records(out)
        self.settings = settings
        self.autoencoder = autoencoder
        self.conditions = conditions_for(settings, text)
        self.device = next(autoencoder.parameters()).device
        self.chunks = -(-len(source) // settings.chunk)
        self._listed = cache(lambda number: source.listed(self._rows(number)))

    def run(self, workers: int = 4, rank: int = 0, world: int = 1) -> Manifest | None:
        """Encode the missing chunks of this process; None if another process writes the manifest.

        Rows that an earlier run skipped are read again, and their chunks encoded again if a row is now usable.
        """
        if len(self.source) == 0:
            raise ValueError(f"{self.source.name} contains no images.")
        self.records.begin(self.settings)
        mine, pool = range(rank, self.chunks, world), ThreadPoolExecutor(workers)
        try:
            before = self._complete(progress_bar(mine, "Checking chunks", len(mine)))
            done = {**before, **self._encoded([k for k in mine if k not in before], pool, workers)}
            done |= self._encoded(self._fixed(before, pool), pool, workers)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # without waiting for what is read ahead
        return self._finish(done) if rank == 0 or done != before else None

    def _rows(self, number: int) -> range:
        first = number * self.settings.chunk
        return range(first, min(first + self.settings.chunk, len(self.source)))

    def _encoded(self, numbers: Sequence[int], pool: ThreadPoolExecutor, workers: int) -> dict[int, Chunk]:
        """Encode and write some chunks; one is written while the next is encoded."""
        size, least = self.settings.crop.size, self.settings.batch_size + workers
        ahead = max(least, min(self.settings.chunk, AHEAD // (3 * size**2)))
        images = progress_bar(
            self._images(numbers, pool, ahead), "Encoding images", sum(len(self._rows(number)) for number in numbers)
        )
        done: dict[int, Chunk] = {}
        with closing(images), ThreadPoolExecutor(1) as writer:
            writing: Future[None] = writer.submit(lambda: None)
            for number in numbers:
                encoded = self.encode(islice(images, len(self._rows(number))))
                writing.result()
                writing = writer.submit(self._write, number, encoded, done)
            writing.result()
        return done

    def _images(self, numbers: Sequence[int], pool: ThreadPoolExecutor, most: int) -> Iterator[CroppedImage | Skipped]:
        """The images of some chunks in order, at most `most` of them read ahead."""
        ahead: deque[Future[CroppedImage | Skipped]] = deque()
        for number in numbers:
            self._listed(number)  # before its rows are read, so that the next run notices a change in between
            for row in self._rows(number):
                ahead.append(pool.submit(self.image, row))
                if len(ahead) == most:
                    yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def image(self, row: int) -> CroppedImage | Skipped:
        """Read a row and crop its image."""
        key, crop = self.source.key(row), self.settings.crop
        try:
            read = self.source.read(row)
            key = read.key
            image = read.decode(at_least=max(2 * max(map(max, crop.sizes)), crop.smallest))
            cropped = center_crop(image, *crop.choose(image))
        except ValueError as error:
            return self._skipped(row, str(error), key)
        return CroppedImage(cropped, ConditionedRow(row, read.captions, read.label))

    def encode(self, images: Iterable[CroppedImage | Skipped]) -> EncodedChunk:
        """The samples of a chunk by image size, its skipped rows, and the number of truncated captions."""
        buffers: dict[Size, EncodeBuffer] = {}
        samples, skipped, cut = dict[Size, Samples](), list[Skipped](), 0
        for one in images:
            if isinstance(one, Skipped):
                skipped.append(one)
            else:
                size = (one.pixels.shape[1], one.pixels.shape[2])
                buffers.setdefault(size, EncodeBuffer(self._latents, self.settings.batch_size)).add(one)
        for size, buffer in sorted(buffers.items(), key=lambda item: item[0]):
            latents = buffer.latents()
            finite = latents.isfinite().flatten(1).all(1)
            kept = [buffer.rows[k] for k in finite.nonzero().flatten().tolist()]
            skipped += [self._skipped(buffer.rows[k].row, OVERFLOW) for k in (~finite).nonzero().flatten().tolist()]
            if kept:
                latents = latents[finite] if self.settings.autoencoder.codebook_size is None else latents[finite].int()
                samples[size], longer = self.conditions.samples(latents, kept)
                cut += longer
        return samples, sorted(skipped, key=lambda one: one.row), cut

    def _skipped(self, row: int, reason: str, key: str | None = None) -> Skipped:
        texts = (key or self.source.key(row), reason)
        key, reason = (text.encode(errors="backslashreplace").decode() for text in texts)  # UTF-8 can encode these
        return Skipped(row=row, key=key, reason=reason)

    def _latents(self, images: Tensor) -> Tensor:
        """Latents in the dtype of the shards; codes stay floating-point, so that an overflow shows."""
        latents = self.autoencoder.encode(images.to(self.device).float() / 255).cpu()
        continuous = self.settings.autoencoder.codebook_size is None
        return latents.to(ENCODER_DTYPES[self.settings.dtype]) if continuous else latents

    def _write(self, number: int, encoded: EncodedChunk, done: dict[int, Chunk]) -> None:
        """Write the shards of a chunk, then its record."""
        self.records.forget(number)
        by_size, skipped, captions_cut = encoded
        shards = []
        for (height, width), samples in by_size.items():
            file = f"{number:06d}-{height}x{width}.safetensors"
            checksum = write_shard(self.out / file, vars(samples))
            size = (samples.latents.shape[2], samples.latents.shape[3])
            shards.append(Shard(file=file, samples=len(samples), size=size, sha256=checksum))
        done[number] = Chunk(
            listed=self._listed(number),
            shards=tuple(shards),
            skipped=tuple(skipped),
            captions=sum(samples.captions for samples in by_size.values()),
            captions_cut=captions_cut,
        )
        self.records.write(number, done[number])

    def _complete(self, numbers: Iterable[int]) -> dict[int, Chunk]:
        """Those of some chunks that are complete and match the source."""
        return {
            number: chunk
            for number in numbers
            if (chunk := self.records.read(number)) is not None
            and all(is_complete(self.out / shard.file) for shard in chunk.shards)
            and chunk.listed == self._listed(number)
        }

    def _fixed(self, chunks: dict[int, Chunk], pool: ThreadPoolExecutor) -> list[int]:
        """Chunks with a skipped row that has become usable."""
        rows = {k: [one.row for one in chunk.skipped if one.reason != OVERFLOW] for k, chunk in chunks.items()}
        return [k for k in rows if any(isinstance(one, CroppedImage) for one in pool.map(self.image, rows[k]))]

    def _finish(self, done: dict[int, Chunk]) -> Manifest | None:
        """Write the manifest, the skipped rows and the empty caption, once all chunks are complete."""
        with locked(self.records.folder, wait=True):
            others = [number for number in range(self.chunks) if number not in done]
            done |= self._complete(others) if all(map(self.records.exists, others)) else {}
            if len(done) < self.chunks:
                return None
            chunks = [done[number] for number in range(self.chunks)]
            null = self.conditions.null()
            checksum = None if null is None else write_shard(self.out / NULL, {"text": null})
            skipped = [one.model_dump_json() for chunk in chunks for one in chunk.skipped]
            write_text(self.out / "skipped.jsonl", "".join(f"{line}\n" for line in skipped))
            if not any(chunk.shards for chunk in chunks):
                raise ValueError(f"No row of {self.source.name} can be used; see {self.out / 'skipped.jsonl'}.")
            manifest = Manifest.of(self.settings, chunks, checksum)
            write_text(self.out / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
            return manifest
