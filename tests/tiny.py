"""Tiny pretrained networks, built from a configuration and saved as a hub would have them."""

from pathlib import Path

import torch


def save_text_encoder(folder: Path, seed: int = 0) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    words = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "circle", "square", "of", "two"]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    torch.manual_seed(seed)
    config = T5Config(vocab_size=len(words), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def tiny_autoencoder(seed: int = 0):  # noqa: ANN201
    from diffusers import AutoencoderTiny

    torch.manual_seed(seed)
    return AutoencoderTiny()


def save_kl_autoencoder(folder: Path, seed: int = 0) -> Path:
    from diffusers import AutoencoderKL

    torch.manual_seed(seed)
    AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 8), layers_per_block=1, latent_channels=4, norm_num_groups=2,
        scaling_factor=0.5, shift_factor=0.25, force_upcast=True,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def save_code_autoencoder(folder: Path, codes: int = 32, widths: tuple[int, int] = (4, 8), **how: object) -> Path:
    from diffusers import VQModel

    torch.manual_seed(0)
    VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=widths, layers_per_block=1, latent_channels=4, norm_num_groups=2, num_vq_embeddings=codes,
        vq_embed_dim=4, **how,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def save_language_model(folder: Path, kind: str = "Llama", seed: int = 0, **settings: object) -> Path:
    import transformers

    torch.manual_seed(seed)
    sizes = {"vocab_size": 32, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, **settings}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    head = "LMHeadModel" if kind in ("Bert", "GPT2") else "ForCausalLM"
    getattr(transformers, kind + head)(config).save_pretrained(folder)
    return folder
