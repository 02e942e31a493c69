"""Text encoders, through transformers."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tmatch.condition import Condition
from tmatch.conditioning import Conditioner
from tmatch.conditioning.base import shortened
from tmatch.hub import PRECISIONS, HubOptions, Precision, digest, extra, first_line, require_there, unavailable

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


class PretrainedText(Conditioner):
    """The last hidden states of a text encoder, one vector a token; of a caption at most `longest` tokens are read."""

    frozen = True

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Any,  # noqa: ANN401
        name: str,
        longest: int,
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        config: Any = network.config
        self.network: Any = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.precision = precision
        self.longest = longest
        self.width = int(config.hidden_size)

    def identity(self) -> dict[str, Any]:
        """What conditions depend on."""
        besides = repr(sorted(self.tokenizer.get_vocab().items())) + _rules(self.tokenizer)
        return {
            "name": self.name, "precision": self.precision, "digest": digest(self.network, besides),
            "width": self.width, "max_length": self.longest,
        }  # fmt: skip

    def lengths(self, captions: Sequence[str]) -> list[int]:
        """Tokens of each caption, read or not."""
        return [len(words) for words in self.tokenizer(list(captions), verbose=False).input_ids] if captions else []

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        long = [p for p, length in zip(prompts, self.lengths(prompts), strict=True) if length > self.longest]
        return [f"the model reads the first {self.longest} tokens of a prompt: {shortened(long[0])!r}."] if long else []

    @torch.no_grad()
    def forward(self, captions: Sequence[str]) -> Condition:
        words = self.tokenizer(
            list(captions), padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
        ).to(self.network.device)
        tokens = self.network(input_ids=words.input_ids, attention_mask=words.attention_mask).last_hidden_state
        return Condition(tokens, words.attention_mask.bool())


def load_text_encoder(
    name: str, longest: int = 128, precision: Precision = "float32", hub: HubOptions = HubOptions()
) -> PretrainedText:
    """A text encoder by its name on the hub or by its folder: of the T5 family, CLIP's, or any that `AutoModel` loads.

    No code of it is run, and only safetensors are read.
    """
    with extra(f"The text encoder {name}"):
        from transformers import (
            MODEL_FOR_TEXT_ENCODING_MAPPING,
            AutoConfig,
            AutoModel,
            AutoModelForTextEncoding,
            AutoTokenizer,
            CLIPTextModel,
        )
    require_there("a text encoder", name)
    if Path(name).is_dir() and not any((Path(name) / file).is_file() for file in TOKENIZERS):
        raise ValueError(f"{name} has no tokenizer; a text encoder's folder holds one of {', '.join(TOKENIZERS)}.")
    how = {"trust_remote_code": False, **hub.arguments()}
    try:
        config = AutoConfig.from_pretrained(name, **how)
        kind: Any = CLIPTextModel if config.model_type.startswith("clip") else AutoModel
        if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:  # the T5 family, without its decoder
            kind = AutoModelForTextEncoding
        network, found = kind.from_pretrained(
            name, dtype=PRECISIONS[precision], use_safetensors=True, output_loading_info=True, **how
        )
        tokenizer = AutoTokenizer.from_pretrained(name, **how)
        if config.is_encoder_decoder and kind is AutoModel:  # BART's kind, whose last states are the decoder's
            network = network.get_encoder()
    except MemoryError:
        raise
    except Exception as error:  # files that are not as they should be make its library raise about anything
        advice = "give the name of one on the hub, or a folder with its config.json, tokenizer and safetensors."
        raise unavailable(f"text encoder '{name}'", error, advice) from error
    _require_weights(network, found["missing_keys"], name)
    try:
        return _tried(network, _padding(tokenizer), name, longest, precision)
    except MemoryError:
        raise
    except Exception as error:  # what reads something else raises about anything
        raise ValueError(
            f"{name} is no encoder of text that can be used here ({first_line(error)}); take one of the T5 family, "
            "CLIP's, or a sentence encoder."
        ) from error


def _rules(tokenizer: Any) -> str:  # noqa: ANN401
    """How a fast tokenizer cuts text, without what its last call left in it; others show only their words."""
    if not tokenizer.is_fast:
        return ""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    for passing in ("version", "padding", "truncation"):
        rules.pop(passing, None)
    if merges := rules["model"].get("merges"):  # pairs, or texts of two words in older versions of the library
        rules["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    return json.dumps(rules, sort_keys=True)


def _padding(tokenizer: Any) -> Any:  # noqa: ANN401
    """A tokenizer that pads on the right, so that a caption's places do not depend on the others of its batch."""
    if not tokenizer("").input_ids:
        raise ValueError(
            "it reads nothing where a caption is empty, which guidance needs: its tokenizer is to mark the beginning "
            "or the end of a text"
        )
    if tokenizer.pad_token is None:  # what fills a batch is masked, so any mark will do
        marks = (tokenizer.eos_token, tokenizer.bos_token, tokenizer.cls_token, tokenizer.unk_token)
        tokenizer.pad_token = next((mark for mark in marks if mark), tokenizer.convert_ids_to_tokens(0))
    tokenizer.padding_side = "right"
    return tokenizer


def _tried(network: Any, tokenizer: Any, name: str, longest: int, precision: Precision) -> PretrainedText:  # noqa: ANN401
    """An encoder that has read a caption."""
    _require_words(network, tokenizer)
    most = [longest, tokenizer.model_max_length]  # the second is a huge number where the tokenizer does not say
    places = getattr(network.config, "max_position_embeddings", None)
    most += [places - _first_place(network)] if places else []
    encoder = PretrainedText(network, tokenizer, name, min(most), precision)
    encoder([""])
    return encoder


def _require_words(network: Any, tokenizer: Any) -> None:  # noqa: ANN401
    """Refuse a tokenizer of another network, which would name words that this one has not."""
    there = network.get_input_embeddings().num_embeddings
    if tokenizer.vocab_size > there:
        raise ValueError(f"its tokenizer has {tokenizer.vocab_size} words, and its weights {there}")


def _require_weights(network: Any, missing: Iterable[str], name: str) -> None:  # noqa: ANN401
    """Refuse a network that is new in part, for its files lacked that; a pooler goes, for nobody reads what it says."""
    needed = sorted(key for key in missing if not key.startswith("pooler."))
    if needed:
        raise ValueError(
            f"The text encoder {name} is not whole: its files lack {len(needed)} weights, {needed[0]} for one; "
            "fetch it again."
        )
    if missing:
        network.pooler = nn.Identity()


def _first_place(network: Any) -> int:  # noqa: ANN401
    """Where positions begin: in RoBERTa's kind after that of the padding."""
    padding = getattr(getattr(getattr(network, "embeddings", None), "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else padding + 1
