"""The way to a picture, as pictures."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tmatch.data import Codec
from tmatch.kernel import Snapshot

GREY = 0.5  # tokens that are not drawn yet


def frames(path: Sequence[Snapshot], codec: Codec, batch_size: int) -> list[Tensor]:
    """A picture (n, 3, height, width) for each moment: the denoising estimate where there is one, the state if not.

    The last is the sample: at t = 1 the estimate and the state are one. Where a state is codes, or its tokens are
    hidden, what is not drawn yet is grey. At most `batch_size` are decoded at once.
    """
    return [
        _picture(moment.x_t if moment.estimate is None else moment.estimate, moment.known, codec, batch_size)
        for moment in path[1:]
    ]


def _picture(x: Tensor, known: Tensor | None, codec: Codec, batch_size: int) -> Tensor:
    shown = x if known is None else torch.where(known[..., None], x, 0)
    picture = torch.cat([codec.decode(part).cpu() for part in shown.split(batch_size)])
    if known is None:
        return picture
    rows, columns = (side // count for side, count in zip(picture.shape[-2:], known.shape[1:], strict=True))
    there = known.cpu().repeat_interleave(rows, dim=1).repeat_interleave(columns, dim=2)[:, None]
    return torch.where(there, picture, GREY)


def spread(count: int, most: int) -> list[int]:
    """Which of `count` frames to show if there is room for `most`: evenly spread, the last among them."""
    if count <= most:
        return list(range(count))
    return [round(k * (count - 1) / (most - 1)) for k in range(most)]
