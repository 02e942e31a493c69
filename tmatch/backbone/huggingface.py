"""A causal language model of Hugging Face's transformers as the backbone, so that FHTM can be put into it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tmatch.backbone.llama import require_causal
from tmatch.backbone.text import in_line, places, read_condition
from tmatch.condition import Condition
from tmatch.layers import initialise
from tmatch.tensors import State, Time


@dataclass
class HuggingFaceCache:
    """The model's own cache, and which places of [text, tokens] are no padding."""

    keys: Any
    there: Tensor  # (batch, text + tokens)
    text: int
    read: int = 0

    @property
    def filled(self) -> int:
        return self.read - self.text


class HuggingFaceBackbone(nn.Module):
    """h = f(x): any model that takes `inputs_embeds` and `past_key_values`, such as LlamaModel, over [text, tokens].

    Tokens of `channels` numbers, and a condition `condition_width` wide, enter by a linear layer each.
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
        self.channels = channels
        self.width = width
        self.x_in = nn.Linear(channels, width)
        self.condition_in = None if condition_width is None else nn.Linear(condition_width, width)
        for linear in (self.x_in, self.condition_in):
            if linear is not None:
                initialise(linear)
        own = next(self.model.parameters())
        self.to(own.device, own.dtype)
        self.model.get_input_embeddings().requires_grad_(False)  # words enter as vectors

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
        if x.shape[-1] != self.channels:
            raise ValueError(f"This backbone reads tokens of {self.channels} channels; got {x.shape[-1]}.")
        grid = x.shape[1:-1]
        tokens = self.x_in(x.flatten(1, -2).to(self.x_in.weight.dtype))
        if cache is not None:
            return self._run(tokens, cache).unflatten(1, grid)
        text = read_condition(self.condition_in, condition, len(x))
        there = in_line(text, len(x), tokens.shape[1], tokens.device)
        sequence = tokens if text is None else torch.cat((text.tokens, tokens), dim=1)
        h = self.model(inputs_embeds=sequence, attention_mask=there, position_ids=places(there), use_cache=False)
        return h.last_hidden_state[:, -tokens.shape[1] :].unflatten(1, grid)

    def open(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> HuggingFaceCache:
        """A cache for decoding: the text is read here, once, and there may be `length` tokens after it."""
        try:
            from transformers import DynamicCache
        except ImportError as error:
            raise ImportError(
                "A Hugging Face backbone needs transformers: pip install 'tmatch[huggingface]'."
            ) from error
        require_causal(t, 0)
        text = read_condition(self.condition_in, condition, batch)
        there = in_line(text, batch, length, self.x_in.weight.device)
        cache = HuggingFaceCache(DynamicCache(config=self.model.config), there, there.shape[1] - length)
        if text is not None:
            self._run(text.tokens, cache)
        return cache

    def _run(self, tokens: Tensor, cache: HuggingFaceCache) -> Tensor:
        end = cache.read + tokens.shape[1]
        if end > cache.there.shape[1]:
            raise ValueError(
                f"The cache was made for {cache.there.shape[1]} tokens, holds {cache.read}, and was asked to take "
                f"{tokens.shape[1]} more; open one of at least {end}."
            )
        place = places(cache.there)[:, cache.read : end]
        h = self.model(
            inputs_embeds=tokens, attention_mask=cache.there[:, :end], position_ids=place,
            past_key_values=cache.keys, use_cache=True,
        )  # fmt: skip
        cache.read = end
        return h.last_hidden_state
