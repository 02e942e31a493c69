"""Causal language models of Hugging Face transformers as backbones: configuration, network and pretrained weights."""

from typing import Any

import torch
from torch import nn

from tmatch.backbone import HuggingFaceBackbone
from tmatch.extras import needs_extra
from tmatch.hub import HubOptions, checked_config, checked_folder, loading, read_network_config, require_weights

NO_WORDS = {"vocab_size": 1, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
"""Tokens of images do not pass through the word embedding, so a single row of it is kept."""
ADVICE = "pass the hub name or the folder of a decoder, such as a Llama, with its config.json and safetensors."


def read_architecture(name: str | None, hub: HubOptions = HubOptions()) -> dict[str, Any]:
    """The configuration of a language model by its hub name or folder; its weights are not downloaded.

    It is without words, and without dropout, whose random numbers a resumed run could not repeat.
    """
    if name is None:
        raise ValueError("A Hugging Face backbone needs the name or folder of a language model: set backbone.model.")
    with needs_extra("A Hugging Face backbone", "huggingface"):
        import transformers  # noqa: F401
    with loading("language model", name, ADVICE):
        config = read_network_config(name, hub)
        return {key: 0.0 if "drop" in key else value for key, value in config.items()} | NO_WORDS


def build_language_model(architecture: dict[str, Any]) -> nn.Module:
    """The network of a configuration, in float32, with weights from the current generator; no remote code is run."""
    with needs_extra("A Hugging Face backbone", "huggingface"):
        from transformers import CONFIG_MAPPING, AutoModel
    if (kind := str(architecture.get("model_type"))) not in CONFIG_MAPPING:
        raise ValueError(f"transformers knows no language model of the type {kind!r}; use a decoder, such as a Llama.")
    config = CONFIG_MAPPING[kind].from_dict(checked_config(architecture))
    network: nn.Module = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    return network


def load_language_model(backbone: HuggingFaceBackbone, name: str | None, hub: HubOptions = HubOptions()) -> list[str]:
    """Load the pretrained weights of a language model, except its words; returns the names of the weights."""
    from transformers import AutoModel

    name = str(name)
    with loading("language model", name, ADVICE), checked_folder(name, hub) as (folder, _):
        network, found = AutoModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, local_files_only=True,
            output_loading_info=True,
        )  # fmt: skip
        require_weights(network, found["missing_keys"])
        names = pretrained_names(backbone)
        weights = network.state_dict()
        backbone.model.load_state_dict({key: weights[key] for key in names}, strict=False)
    return names


def pretrained_names(backbone: HuggingFaceBackbone) -> list[str]:
    """Names of the weights inside `backbone.model` that a pretrained language model has, too: all but its words."""
    words = backbone.model.get_input_embeddings().weight
    return [name for name, weight in backbone.model.state_dict(keep_vars=True).items() if weight is not words]
