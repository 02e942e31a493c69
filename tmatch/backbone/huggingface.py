"""A causal language model of Hugging Face transformers as the backbone of full-history variants."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.backbone.cache import position_ids, read_condition, sequence_mask
from tmatch.backbone.llama import require_causal
from tmatch.condition import Condition
from tmatch.extras import needs_extra
from tmatch.layers import initialise, require_channels
from tmatch.tensors import State, Time


@dataclass
class HuggingFaceCache:
    """The model's own cache, and the padding mask of [text, tokens]."""

    keys: Any
    valid: Tensor  # (batch, text + tokens)
    text: int
    read: int = 0

    @property
    def filled(self) -> int:
        return self.read - self.text


class HuggingFaceBackbone(nn.Module):
    """h = f(x): any causal model that takes `inputs_embeds` and `past_key_values`, such as LlamaModel.

    It reads [text, tokens]; one linear layer embeds tokens of `channels` numbers and another the condition. The word
    embedding is neither used nor trained. `checkpointing` recomputes each layer in the backward pass.
    """

    timed = False

    def __init__(
        self, model: nn.Module, channels: int, condition_width: int | None = None, checkpointing: bool = False
    ) -> None:
        super().__init__()
        config: Any = getattr(model, "config", None)
        width = getattr(config, "hidden_size", None)
        if not isinstance(width, int):
            raise ValueError(f"{type(model).__name__} is not a transformers model: it has no config.hidden_size.")
        decoder: Any = model
        self.model: Any = decoder.get_decoder() if hasattr(model, "lm_head") else decoder
        _require_causal_model(self.model, width)
        self.channels = channels
        self.width = width
        self.x_in = nn.Linear(channels, width)
        self.condition_in = None if condition_width is None else nn.Linear(condition_width, width)
        initialise(nn.ModuleList([self.x_in, *([] if self.condition_in is None else [self.condition_in])]))
        own = next(self.model.parameters())
        self.to(own.device, own.dtype)
        self.model.get_input_embeddings().requires_grad_(False)
        if checkpointing:
            self.checkpointing = True

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers of the model, one after the other."""
        return next(([*part] for part in self.model.modules() if isinstance(part, nn.ModuleList)), [])

    @property
    def checkpointing(self) -> bool:
        """Whether the layers are recomputed in the backward pass."""
        return bool(self.model.is_gradient_checkpointing)

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        if on:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()

    def forward(
        self, x: State, t: Time | None = None, condition: Condition | None = None, *, positions: Tensor | None = None,
        prefix: int | None = None, cache: HuggingFaceCache | None = None,
    ) -> Tensor:  # fmt: skip
        """One vector per token, (batch, *grid, width), in raster order; `positions` are ignored."""
        require_causal(t, prefix)
        require_channels(x, self.channels)
        grid = x.shape[1:-1]
        tokens = self.x_in(x.flatten(1, -2).to(self.x_in.weight.dtype))
        if cache is not None:
            return self._run(tokens, cache).unflatten(1, grid)
        text = read_condition(self.condition_in, condition, len(x))
        valid = sequence_mask(text, len(x), tokens.shape[1], x.device)
        sequence = tokens if text is None else torch.cat((text.tokens, tokens), dim=1)
        h = self.model(inputs_embeds=sequence, use_cache=False, **_padding(valid, 0))
        return h.last_hidden_state[:, -tokens.shape[1] :].unflatten(1, grid)

    def init_cache(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> HuggingFaceCache:
        """A cache for decoding `length` tokens after the text, which it has read."""
        with needs_extra("A Hugging Face backbone", "huggingface"):
            from transformers import DynamicCache
        require_causal(t, 0)
        text = read_condition(self.condition_in, condition, batch)
        valid = sequence_mask(text, batch, length, self.x_in.weight.device)
        cache = HuggingFaceCache(DynamicCache(config=self.model.config), valid, valid.shape[1] - length)
        if text is not None:
            self._run(text.tokens, cache)
        return cache

    def _run(self, tokens: Tensor, cache: HuggingFaceCache) -> Tensor:
        end = cache.read + tokens.shape[1]
        padding = _padding(cache.valid[:, :end], cache.read)
        h = self.model(inputs_embeds=tokens, past_key_values=cache.keys, use_cache=True, **padding)
        cache.read = end
        return h.last_hidden_state


def _padding(valid: Tensor, start: int) -> dict[str, Tensor]:
    """The padding mask of [read, new], and the positions of the new tokens.

    A model reads the mask to build that of its attention, which on the meta device is passed as such.
    """
    end = valid.shape[1]
    mask = valid[:, None, None].expand(-1, 1, end - start, end) if valid.is_meta else valid
    return {"attention_mask": mask, "position_ids": position_ids(valid)[:, start:]}


@torch.no_grad()
def _require_causal_model(model: nn.Module, width: int) -> None:
    """Raise if later tokens change earlier outputs, as in BERT."""
    own, training = next(model.parameters()), model.training
    if own.is_meta:  # nothing to compute
        return
    first = torch.linspace(-1, 1, width, device=own.device, dtype=own.dtype)
    model.eval()
    one, other = (
        model(inputs_embeds=torch.stack((first, second))[None], use_cache=False).last_hidden_state[0, 0]
        for second in (first, first.flip(0).square())
    )
    model.train(training)
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-5):
        raise ValueError(f"{type(model).__name__} is not causal; use a decoder, such as LlamaModel.")
