"""The diffusion transformer f of the paper."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tmatch.backbone.attention import CrossAttention, SelfAttention
from tmatch.condition import Condition
from tmatch.layers import PositionEmbedding, TimeModulation, grid_positions, initialise, modulate, require_time
from tmatch.tensors import State, Time


class Block(nn.Module):
    """Self-attention, cross-attention to the condition, MLP; modulated by the time, with small offsets of its own."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, conditional: bool, qk_norm: bool) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.offsets = nn.Parameter(torch.zeros(6 * width))
        self.attention_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = SelfAttention(width, heads, qk_norm)
        self.cross_norm = nn.LayerNorm(width) if conditional else None
        self.cross = CrossAttention(width, heads, qk_norm) if conditional else None
        self.mlp_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))

    def forward(self, x: Tensor, modulation: Tensor, text: Condition | None, mask: Tensor | None) -> Tensor:
        """Tokens x (batch, tokens, width), modulation (batch, 1, 6 width)."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (modulation + self.offsets).chunk(6, dim=-1)
        x = x + gate_1 * self.attention(modulate(self.attention_norm(x), shift_1, scale_1), mask)
        if self.cross is not None and self.cross_norm is not None:
            assert text is not None, "the backbone checks that a condition is there"
            x = x + self.cross(self.cross_norm(x), text.tokens, text.mask)
        return x + gate_2 * self.mlp(modulate(self.mlp_norm(x), shift_2, scale_2))


class DiT(nn.Module):
    """h = f_t(x_t): a transformer over the tokens of a state.

    One modulation is computed from the time and shared by all blocks, as the paper's 1.7B parameters require.
    Positions are (step, row, column) and may have any size. A conditional DiT (`condition_width`) attends to the
    condition in every block. One that is not `timed` takes t = None and keeps the blocks' own offsets alone. With
    `checkpointing`, training computes a block twice instead of keeping what is inside: less memory, same gradients.

    The paper's is DiT(16, width=2048, depth=24, heads=16, condition_width=4096).
    """

    def __init__(
        self,
        channels: int,
        width: int,
        depth: int,
        heads: int,
        condition_width: int | None = None,
        mlp_ratio: float = 4.0,
        qk_norm: bool = False,
        timed: bool = True,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"The width of a DiT divides by its heads; {width} does not divide by {heads}.")
        self.channels = channels
        self.width = width
        self.checkpointing = checkpointing
        self.condition_width = condition_width
        self.x_in = nn.Linear(channels, width)
        self.position = PositionEmbedding(width)
        self.time = TimeModulation(width, 6 + 2) if timed else None  # six parts for the blocks, two for the output
        self.condition_in = None if condition_width is None else nn.Linear(condition_width, width)
        conditional = condition_width is not None
        blocks = [Block(width, heads, mlp_ratio, conditional, qk_norm) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.out_norm = nn.LayerNorm(width, elementwise_affine=False)
        # Every block starts as the identity: gates and what cross-attention adds are zero.
        cross = (block.cross.out for block in blocks if block.cross is not None)
        initialise(self, *cross, *([] if self.time is None else [self.time.linear]))

    def forward(
        self,
        x: State,
        t: Time | None,
        condition: Condition | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """One vector a token, (batch, *grid, width).

        `positions` (tokens, 3) and `mask` (tokens, tokens) are for sequences put together from several states; without
        them every token of the grid sees every other.
        """
        if x.shape[-1] != self.channels:
            raise ValueError(f"This backbone reads tokens of {self.channels} channels; got {x.shape[-1]}.")
        grid = x.shape[1:-1]
        if positions is None:
            positions = grid_positions(grid, device=x.device)
        text = self._read(condition, len(x))
        for_blocks, for_output = self._modulation(t).tensor_split([6 * self.width], dim=-1)
        tokens = self.x_in(x.flatten(1, -2).to(self.x_in.weight.dtype)) + self.position(positions)
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                tokens = checkpoint(block, tokens, for_blocks, text, mask, use_reentrant=False)
            else:
                tokens = block(tokens, for_blocks, text, mask)
        h = modulate(self.out_norm(tokens), *for_output.chunk(2, dim=-1))
        return h.unflatten(1, grid)

    def _modulation(self, t: Time | None) -> Tensor:
        """(batch, 1, 8 width), from the time alone."""
        require_time(self.time, t)
        return self.x_in.weight.new_zeros(1, 1, 8 * self.width) if self.time is None else self.time(t)[:, None]

    def _read(self, condition: Condition | None, batch: int) -> Condition | None:
        if self.condition_in is None:
            if condition is not None:
                raise ValueError("This backbone was built without a condition; give DiT a condition_width to use one.")
            return None
        if condition is None:
            raise ValueError("This backbone needs a condition; for unconditional samples pass the null condition.")
        if condition.tokens.shape[-1] != self.condition_width:
            raise ValueError(
                f"This backbone reads conditions {self.condition_width} wide; got {condition.tokens.shape[-1]}: "
                "was the text encoded by another encoder?"
            )
        tokens = condition.tokens.to(self.condition_in.weight.dtype)
        return Condition(self.condition_in(tokens), condition.mask).repeated(batch)
