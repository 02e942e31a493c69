"""A transformer over the words of a small vocabulary."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tmatch.backbone.attention import AttentionMask, SelfAttention
from tmatch.condition import Condition
from tmatch.conditioning.base import Conditioner, listed, shortened
from tmatch.layers import GELU, LayerNorm, upcast_residual


class WordBlock(nn.Module):
    """Self-attention and MLP, each on its residual."""

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
    """The words of a caption, in small letters and without the marks around them."""
    return [word for part in caption.lower().split() if (word := part.strip(".,;:!?()\"'"))]


class WordEncoder(Conditioner):
    """A vector for each word in its place, after a mark that begins every caption; unknown words are left out."""

    def __init__(
        self, vocabulary: Sequence[str], width: int = 128, depth: int = 1, heads: int = 4, longest: int = 16
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"The width of a text encoder divides by its heads; {width} does not divide by {heads}.")
        if len(set(vocabulary)) != len(vocabulary) or not vocabulary:
            raise ValueError("A vocabulary is a list of different words, at least one.")
        self.vocabulary = tuple(vocabulary)
        self.width = width
        self.longest = longest
        self._index = {word: index for index, word in enumerate(self.vocabulary, start=2)}  # 0 begins, 1 is free
        self.words = nn.Embedding(len(self.vocabulary) + 2, width)
        self.places = nn.Embedding(longest + 1, width)
        self.blocks = nn.ModuleList(WordBlock(width, heads) for _ in range(depth))
        self.norm = LayerNorm(width)

    def unknown(self, caption: str) -> list[str]:
        """The words of a caption that are not in the vocabulary."""
        return [word for word in words_of(caption) if word not in self._index]

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        found = []
        if unknown := sorted({word for prompt in prompts for word in self.unknown(prompt)}):
            names = listed([repr(shortened(word)) for word in unknown])
            found.append(f"the model never saw {names} and draws without; it knows: {listed(self.vocabulary)}.")
        if long := [prompt for prompt in prompts if len(prompt.split()) > self.longest]:
            found.append(f"the model reads the first {self.longest} words of a prompt: {shortened(long[0])!r}.")
        return found

    def forward(self, captions: Sequence[str]) -> Condition:
        return self.encode(*self.tokenise(captions))

    def tokenise(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The numbers of the words, (captions, length), and which of them are there."""
        known = ([self._index[word] for word in words_of(text) if word in self._index] for text in captions)
        rows = [[0, *words[: self.longest]] for words in known]
        length = max(map(len, rows))
        device = self.words.weight.device
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows], device=device)
        mask = torch.arange(length, device=device) < torch.tensor([len(row) for row in rows], device=device)[:, None]
        return ids, mask

    def encode(self, ids: Tensor, mask: Tensor) -> Condition:
        """The condition of what `tokenise` gave."""
        x = upcast_residual(self.words(ids) + self.places.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x, mask[:, None, None, :])
        return Condition(self.norm(x), mask)
