"""A transformer over the words of a small vocabulary."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tmatch.backbone.attention import AttentionMask, SelfAttention
from tmatch.condition import Condition
from tmatch.conditioning.base import Conditioner, listed, require_text, shortened
from tmatch.layers import GELU, LayerNorm, upcast_residual


class WordBlock(nn.Module):
    """Self-attention and MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp_norm = LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), AttentionMask(mask))
        return x + self.mlp(self.mlp_norm(x))


def words_of(caption: str) -> list[str]:
    """The words of a caption, in lower case and without punctuation."""
    return [word for part in caption.lower().split() if (word := part.strip(".,;:!?()\"'"))]


class WordEncoder(Conditioner):
    """One token per word after a start token; words outside the vocabulary are skipped."""

    null = ""

    def __init__(
        self, vocabulary: Sequence[str], width: int = 128, depth: int = 1, heads: int = 4, max_length: int = 16
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"The width of the text encoder must be divisible by its heads; got {width} and {heads}.")
        if len(set(vocabulary)) != len(vocabulary) or not vocabulary:
            raise ValueError("A vocabulary must be a non-empty list of unique words.")
        self.vocabulary = tuple(vocabulary)
        self.width: int = width
        self.max_length = max_length
        self._index = {word: index for index, word in enumerate(self.vocabulary, start=2)}  # 0: start, 1: unused
        self.words = nn.Embedding(len(self.vocabulary) + 2, width)
        self.positions = nn.Embedding(max_length + 1, width)
        self.blocks = nn.ModuleList(WordBlock(width, heads) for _ in range(depth))
        self.norm = LayerNorm(width)

    def unknown(self, caption: str) -> list[str]:
        """The words of a caption that are not in the vocabulary."""
        return [word for word in words_of(caption) if word not in self._index]

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        found = []
        if unknown := sorted({word for prompt in prompts for word in self.unknown(prompt)}):
            names = listed([repr(shortened(word)) for word in unknown])
            found.append(f"the model does not know {names} and ignores it; it knows: {listed(self.vocabulary)}.")
        if long := [prompt for prompt in prompts if len(prompt.split()) > self.max_length]:
            found.append(f"the model reads only the first {self.max_length} words of a prompt: {shortened(long[0])!r}.")
        return found

    def forward(self, inputs: Sequence[str]) -> Condition:
        require_text(inputs)
        return self.encode(*self.tokenize(inputs))

    def tokenize(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids (captions, length), and a mask that is False on padding."""
        known = ([self._index[word] for word in words_of(text) if word in self._index] for text in captions)
        rows = [[0, *words[: self.max_length]] for words in known]
        length = max(map(len, rows))
        device = self.words.weight.device
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows], device=device)
        mask = torch.arange(length, device=device) < torch.tensor([len(row) for row in rows], device=device)[:, None]
        return ids, mask

    def encode(self, ids: Tensor, mask: Tensor) -> Condition:
        """The condition of tokenized captions."""
        x = upcast_residual(self.words(ids) + self.positions.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x, mask[:, None, None, :])
        return Condition(self.norm(x), mask)
