"""Pretrained text encoders, through transformers."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tmatch.condition import Condition
from tmatch.conditioning.base import Conditioner, require_text, shortened
from tmatch.extras import needs_extra
from tmatch.hub import ENCODER_DTYPES, EncoderDtype, HubOptions, checked_folder, fingerprint, loading, require_weights

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_TOKENIZING = threading.Lock()
"""Held while a tokenizer runs: each call sets its padding and truncation, which all threads share."""


class PretrainedText(Conditioner):
    """The last hidden states of a text encoder, one vector per token; captions are truncated to `max_length` tokens."""

    null = ""
    frozen = True

    def __init__(
        self, network: nn.Module, tokenizer: Any, name: str, max_length: int,  # noqa: ANN401
        precision: EncoderDtype = "float32",
    ) -> None:  # fmt: skip
        super().__init__()
        config: Any = network.config
        self.network: Any = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.precision = precision
        self.max_length = max_length
        self.width: int = int(config.hidden_size)

    def identity(self) -> dict[str, Any]:
        """Everything that the conditions depend on."""
        tokenizer = repr(sorted(self.tokenizer.get_vocab().items())) + _rules(self.tokenizer)
        return {
            "name": self.name, "precision": self.precision, "digest": fingerprint(self.network, tokenizer),
            "width": self.width, "max_length": self.max_length,
        }  # fmt: skip

    def lengths(self, captions: Sequence[str]) -> list[int]:
        """The number of tokens of each caption, before truncation."""
        with _TOKENIZING:
            return [len(words) for words in self.tokenizer(list(captions), verbose=False).input_ids] if captions else []

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        long = [p for p, length in zip(prompts, self.lengths(prompts), strict=True) if length > self.max_length]
        limit = f"the model reads only the first {self.max_length} tokens of a prompt"
        return [f"{limit}: {shortened(long[0])!r}."] if long else []

    @torch.no_grad()
    def forward(self, inputs: Sequence[str]) -> Condition:
        require_text(inputs)
        how = {"padding": True, "truncation": True, "max_length": self.max_length, "return_tensors": "pt"}
        with _TOKENIZING:
            words = self.tokenizer(list(inputs), **how).to(self.network.device)
        tokens = self.network(input_ids=words.input_ids, attention_mask=words.attention_mask).last_hidden_state
        return Condition(tokens, words.attention_mask.bool())


def load_text_encoder(
    name: str, max_length: int = 128, precision: EncoderDtype = "float32", hub: HubOptions = HubOptions()
) -> PretrainedText:
    """A text encoder by its hub name or folder: the T5 family, CLIP, or any that `AutoModel` loads.

    Remote code is never run, and only safetensors are read.
    """
    with needs_extra(f"The text encoder {name}", "t2i"):
        from transformers import (
            MODEL_FOR_TEXT_ENCODING_MAPPING,
            AutoConfig,
            AutoModel,
            AutoModelForTextEncoding,
            AutoTokenizer,
            CLIPTextModel,
        )
    how: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    advice = "pass the hub name or the folder of a T5, CLIP or sentence encoder with its tokenizer and safetensors."
    with loading("text encoder", name, advice), checked_folder(name, hub) as (folder, _):
        if not any((folder / file).is_file() for file in TOKENIZERS):
            raise ValueError(f"it has no tokenizer, which is one of {', '.join(TOKENIZERS)}")
        config = AutoConfig.from_pretrained(folder, **how)
        kind: Any = CLIPTextModel if config.model_type.startswith("clip") else AutoModel
        if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:  # the T5 family, without its decoder
            kind = AutoModelForTextEncoding
        network, found = kind.from_pretrained(
            folder, dtype=ENCODER_DTYPES[precision], use_safetensors=True, output_loading_info=True, **how
        )
        if config.is_encoder_decoder and kind is AutoModel:  # as BART, whose last hidden states are the decoder's
            network = network.get_encoder()
        require_weights(network, (key for key in found["missing_keys"] if not key.startswith("pooler.")))
        if found["missing_keys"]:  # the output of a pooler is not used
            network.pooler = nn.Identity()
        tokenizer = _padding(AutoTokenizer.from_pretrained(folder, **how))
        encoder = PretrainedText(network, tokenizer, name, _limit(network, tokenizer, max_length), precision)
        encoder([""])  # fail now if it does not read text
    return encoder


def _rules(tokenizer: Any) -> str:  # noqa: ANN401
    """The rules of a fast tokenizer, without the state that its last call left; slow ones have only a vocabulary."""
    if not tokenizer.is_fast:
        return ""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    for passing in ("version", "padding", "truncation"):
        rules.pop(passing, None)
    if merges := rules["model"].get("merges"):  # pairs, or strings in older versions of the library
        rules["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    return json.dumps(rules, sort_keys=True)


def _padding(tokenizer: Any) -> Any:  # noqa: ANN401
    """A tokenizer that pads on the right, so that positions do not depend on the rest of the batch."""
    if not tokenizer("").input_ids:
        raise ValueError("the empty caption, which guidance needs, has no tokens: the tokenizer must add an end token")
    if tokenizer.pad_token is None:  # padding is masked, so any token will do
        special = (tokenizer.eos_token, tokenizer.bos_token, tokenizer.cls_token, tokenizer.unk_token)
        tokenizer.pad_token = next((token for token in special if token), tokenizer.convert_ids_to_tokens(0))
    tokenizer.padding_side = "right"
    return tokenizer


def _limit(network: Any, tokenizer: Any, max_length: int) -> int:  # noqa: ANN401
    """The number of tokens that are read; a tokenizer must not have more words than the network."""
    embeddings = network.get_input_embeddings().num_embeddings
    if tokenizer.vocab_size > embeddings:
        raise ValueError(f"its tokenizer has {tokenizer.vocab_size} tokens, but its weights have {embeddings}")
    positions = getattr(network.config, "max_position_embeddings", None) or max_length
    table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    first = 0 if padding is None else padding + 1  # RoBERTa starts after the position of the padding
    return int(min(max_length, tokenizer.model_max_length, positions - first))
