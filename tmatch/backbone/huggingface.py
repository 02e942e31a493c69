"""A causal language model of Hugging Face's transformers as the backbone, so that FHTM can be put into it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.backbone.cache import require_room
from tmatch.backbone.llama import require_causal
from tmatch.backbone.text import position_ids, read_condition, sequence_mask
from tmatch.condition import Condition
from tmatch.extras import needs_extra
from tmatch.layers import initialise, require_channels
from tmatch.tensors import State, Time


@dataclass
class HuggingFaceCache:
    """The model's own cache, and which places of [text, tokens] are no padding."""

    keys: Any
    valid: Tensor  # (batch, text + tokens)
    text: int
    read: int = 0

    @property
    def filled(self) -> int:
        return self.read - self.text


class HuggingFaceBackbone(nn.Module):
    """h = f(x): any causal model that takes `inputs_embeds` and `past_key_values`, such as LlamaModel.

    It reads [text, tokens]: tokens of `channels` numbers, and a condition `condition_width` wide, enter by a linear
    layer each. Its embedding of words is not used, and not trained.
    """

    timed = False

    def __init__(self, model: nn.Module, channels: int, condition_width: int | None = None) -> None:
        super().__init__()
        config: Any = getattr(model, "config", None)
        width = getattr(config, "hidden_size", None)
        if not isinstance(width, int):
            raise ValueError(f"{type(model).__name__} is no model of transformers: it has no config.hidden_size.")
        decoder: Any = model
        self.model: Any = decoder.get_decoder() if hasattr(model, "lm_head") else decoder
        _require_no_look_ahead(self.model, width)
        self.longest = _learnt_places(self.model)
        self.channels = channels
        self.width = width
        self.x_in = nn.Linear(channels, width)
        self.condition_in = None if condition_width is None else nn.Linear(condition_width, width)
        for linear in (self.x_in, self.condition_in):
            if linear is not None:
                initialise(linear)
        own = next(self.model.parameters())
        self.to(own.device, own.dtype)
        self.model.get_input_embeddings().requires_grad_(False)

    def forward(
        self,
        x: State,
        t: Time | None = None,
        condition: Condition | None = None,
        *,
        positions: Tensor | None = None,
        prefix: int | None = None,
        cache: HuggingFaceCache | None = None,
    ) -> Tensor:
        """One vector a token, (batch, *grid, width); tokens follow each other in reading order, `positions` or not."""
        require_causal(t, prefix)
        require_channels(x, self.channels)
        grid = x.shape[1:-1]
        tokens = self.x_in(x.flatten(1, -2).to(self.x_in.weight.dtype))
        if cache is not None:
            return self._run(tokens, cache).unflatten(1, grid)
        text = read_condition(self.condition_in, condition, len(x))
        valid = self._line(text, len(x), tokens.shape[1])
        sequence = tokens if text is None else torch.cat((text.tokens, tokens), dim=1)
        h = self.model(inputs_embeds=sequence, attention_mask=valid, position_ids=position_ids(valid), use_cache=False)
        return h.last_hidden_state[:, -tokens.shape[1] :].unflatten(1, grid)

    def init_cache(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> HuggingFaceCache:
        """A cache for decoding: the text is read here, once, and there may be `length` tokens after it."""
        with needs_extra("A Hugging Face backbone", "huggingface"):
            from transformers import DynamicCache
        require_causal(t, 0)
        text = read_condition(self.condition_in, condition, batch)
        valid = self._line(text, batch, length)
        cache = HuggingFaceCache(DynamicCache(config=self.model.config), valid, valid.shape[1] - length)
        if text is not None:
            self._run(text.tokens, cache)
        return cache

    def _line(self, text: Condition | None, batch: int, length: int) -> Tensor:
        """Which places of [text, tokens] are no padding, if the model has that many."""
        valid = sequence_mask(text, batch, length, self.x_in.weight.device)
        if self.longest is not None and valid.shape[1] > self.longest:
            raise ValueError(
                f"{type(self.model).__name__} has learnt {self.longest} positions, and text and tokens take "
                f"{valid.shape[1]}: take a model of more, or one with rotary positions."
            )
        return valid

    def _run(self, tokens: Tensor, cache: HuggingFaceCache) -> Tensor:
        require_room(tokens, len(cache.valid), cache.valid.shape[1] - cache.text, cache.filled)
        end = cache.read + tokens.shape[1]
        place = position_ids(cache.valid)[:, cache.read : end]
        h = self.model(
            inputs_embeds=tokens, attention_mask=cache.valid[:, :end], position_ids=place,
            past_key_values=cache.keys, use_cache=True,
        )  # fmt: skip
        cache.read = end
        return h.last_hidden_state


@torch.no_grad()
def _require_no_look_ahead(model: nn.Module, width: int) -> None:
    """Refuse a model in which what comes later changes what was before, as in BERT."""
    own, training = next(model.parameters()), model.training
    if own.is_meta:  # there is nothing to try
        return
    first = torch.linspace(-1, 1, width, device=own.device, dtype=own.dtype)
    model.eval()
    one, other = (
        model(inputs_embeds=torch.stack((first, second))[None], use_cache=False).last_hidden_state[0, 0]
        for second in (first, first.flip(0).square())
    )
    model.train(training)
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-5):
        raise ValueError(
            f"{type(model).__name__} is not causal: its tokens see later ones; take a decoder, such as LlamaModel."
        )


def _learnt_places(model: Any) -> int | None:  # noqa: ANN401
    """How many positions a model has, where it has learnt a vector for each; None where they are computed."""
    words = model.get_input_embeddings()
    learnt = any(isinstance(part, nn.Embedding) and part is not words for part in model.modules())
    return getattr(model.config, "max_position_embeddings", None) if learnt else None
