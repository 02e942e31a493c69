"""The sampling path of an image, as images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tmatch.codec import Codec
from tmatch.sampling import Snapshot

GREY = 0.5  # tokens that are not sampled yet


def frames(path: Sequence[Snapshot], codec: Codec, batch_size: int) -> list[Tensor]:
    """Images (n, 3, height, width) of each snapshot: its denoising estimate if it has one, or else its state.

    The last one is the sample. Tokens that are masked or not sampled yet are grey. At most `batch_size` images are
    decoded at once.
    """
    return [_image(one.x_t if one.estimate is None else one.estimate, one.known, codec, batch_size) for one in path[1:]]


def _image(x: Tensor, known: Tensor | None, codec: Codec, batch_size: int) -> Tensor:
    shown = x if known is None else torch.where(known[..., None], x, 0)
    image = torch.cat([codec.decode(part).cpu() for part in shown.split(batch_size)])
    if known is None:
        return image
    rows, columns = (side // count for side, count in zip(image.shape[-2:], known.shape[1:], strict=True))
    mask = known.cpu().repeat_interleave(rows, dim=1).repeat_interleave(columns, dim=2)[:, None]
    return torch.where(mask, image, GREY)


def evenly_spaced(count: int, limit: int) -> list[int]:
    """The indices of at most `limit` of `count` frames, evenly spaced and including the last."""
    if count <= limit:
        return list(range(count))
    return [round(k * (count - 1) / (limit - 1)) for k in range(limit)]
