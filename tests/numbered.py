"""Data shards whose latents hold the number of their row."""

from pathlib import Path

import torch

from tmatch.data.crop import Crop
from tmatch.data.manifest import Chunk, Manifest, Shard, ShardSettings
from tmatch.data.shards import MANIFEST, NULL, CaptionedSamples, write_shard

NETWORK = {"name": "", "precision": "float32", "digest": ""}
SETTINGS = ShardSettings.model_validate(
    {
        "source": "", "rows": 0, "crop": Crop(), "dtype": "float32", "chunk": 1, "batch_size": 1, "licence": "",
        "autoencoder": {**NETWORK, "channels": 1, "factor": 8, "scale": 1.0, "shift": 0.0},
        "text": {**NETWORK, "width": 2, "max_length": 8},
    }
)  # fmt: skip


def shard_set(folder: Path, groups: dict[tuple[int, int], list[int]], dtype: torch.dtype = torch.float32) -> Path:
    """Shards of given sizes and sample counts; each latent is filled with the number of its row."""
    shards, row = [], 0
    for size, counts in groups.items():
        for count in counts:
            rows = list(range(row, row := row + count))
            latents = torch.stack([torch.full((1, *size), float(k), dtype=dtype) for k in rows])
            conditions = [[torch.full((1 + t, 2), float(k), dtype=dtype) for t in range(1 + k % 2)] for k in rows]
            file = f"{rows[0]:04}.safetensors"
            checksum = write_shard(folder / file, vars(CaptionedSamples.join(latents, conditions, rows)))
            shards.append(Shard(file=file, samples=count, size=size, sha256=checksum))
    null = write_shard(folder / NULL, {"text": torch.zeros(1, 2)})
    manifest = Manifest.of(SETTINGS, [Chunk(shards=tuple(shards))], null)
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return folder
