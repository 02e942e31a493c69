"""The way to an image, as images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tmatch.codec import Codec
from tmatch.sampling import Snapshot

GREY = 0.5  # tokens that are not drawn yet


def frames(path: Sequence[Snapshot], codec: Codec, batch_size: int) -> list[Tensor]:
    """An image (n, 3, height, width) for each moment: the denoising estimate where there is one, the state if not.

    The last is the sample: at t = 1 the estimate and the state are one. Where a state is codes, or its tokens are
    hidden, what is not drawn yet is grey. At most `batch_size` are decoded at once.
    """
    return [
        _image(
            fixed_time.x_t if fixed_time.estimate is None else fixed_time.estimate, fixed_time.known, codec, batch_size
        )
        for fixed_time in path[1:]
    ]


def _image(x: Tensor, known: Tensor | None, codec: Codec, batch_size: int) -> Tensor:
    shown = x if known is None else torch.where(known[..., None], x, 0)
    image = torch.cat([codec.decode(part).cpu() for part in shown.split(batch_size)])
    if known is None:
        return image
    rows, columns = (side // count for side, count in zip(image.shape[-2:], known.shape[1:], strict=True))
    there = known.cpu().repeat_interleave(rows, dim=1).repeat_interleave(columns, dim=2)[:, None]
    return torch.where(there, image, GREY)


def spread(count: int, most: int) -> list[int]:
    """Which of `count` frames to show if there is room for `most`: evenly spread, the last among them."""
    if count <= most:
        return list(range(count))
    return [round(k * (count - 1) / (most - 1)) for k in range(most)]
