"""Causal backbones: equivalence with Hugging Face's Llama, caches, and other Hugging Face models."""

from collections.abc import Callable

import pytest
import torch
from laws import SHAPE, awake, condition, data_of, shape_of, small_dit, small_model
from torch import nn

import tmatch as tm
from tmatch.backbone.cache import LayerKVCache


def hugging_face(kind: str, **settings: int) -> nn.Module:
    import transformers

    sizes = {"vocab_size": 8, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, **settings}
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))


def test_llama_equals_the_one_of_hugging_face() -> None:
    ours = awake(tm.Llama(4, 24, 2, 2, condition_width=8))
    theirs = hugging_face("Llama", intermediate_size=64, num_key_value_heads=2)
    named = {"norm.weight": ours.out_norm.weight, "embed_tokens.weight": theirs.embed_tokens.weight}
    for k, block in enumerate(ours.blocks):
        parts = {
            f"self_attn.{name}_proj": w for name, w in zip("qkv", block.attention.qkv.weight.chunk(3), strict=True)
        }
        parts |= dict(zip(("mlp.gate_proj", "mlp.up_proj"), block.gate_up.weight.chunk(2), strict=True))
        parts |= {"self_attn.o_proj": block.attention.out.weight, "mlp.down_proj": block.down.weight}
        parts |= {"input_layernorm": block.attention_norm.weight, "post_attention_layernorm": block.mlp_norm.weight}
        named |= {f"layers.{k}.{name}.weight": weight for name, weight in parts.items()}
    theirs.load_state_dict(named)
    x, given = torch.randn(2, 5, 4), condition(2)
    sequence = torch.cat((ours.condition_in(given.tokens), ours.x_in(x)), dim=1)
    expected = theirs(inputs_embeds=sequence).last_hidden_state[:, -5:]
    torch.testing.assert_close(ours(x, condition=given, prefix=0), expected, atol=1e-5, rtol=1e-5)


BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "DiT": lambda: small_dit(timed=False),
    "Llama": lambda: tm.Llama(4, 24, 2, 2, condition_width=8),
    "Hugging Face": lambda: tm.HuggingFaceBackbone(hugging_face("Llama", intermediate_size=48), 4, condition_width=8),
}


@pytest.mark.parametrize("backbone", ["DiT", "Llama"])
def test_caches_are_allocated_once_and_read_in_place(backbone: str) -> None:
    f = BACKBONES[backbone]()
    cache = f.init_cache(None, condition(2), 2, length=4)
    before = [(kv_cache.keys.data_ptr(), kv_cache.values.data_ptr()) for kv_cache in cache.kv_caches]
    for _ in range(4):
        f(torch.randn(2, 1, 4), prefix=0, cache=cache)
    assert [(kv_cache.keys.data_ptr(), kv_cache.values.data_ptr()) for kv_cache in cache.kv_caches] == before
    kv_cache = LayerKVCache(2, 2, 4, 12, torch.zeros(()))
    for seen in (kv_cache.extend(*torch.randn(2, 2, 2, 1, 12)) for _ in range(4)):
        assert [part.data_ptr() for part in seen] == [kv_cache.keys.data_ptr(), kv_cache.values.data_ptr()]


@pytest.mark.parametrize("name", ["ar", "artm-3", "fhtm-3", "ar-discrete"])
def test_the_text_is_encoded_once_per_transition_or_history(name: str) -> None:
    model, calls = small_model(name), []
    for part in (model.kernel.backbone.condition_in, model.kernel.backbone.blocks[0].cross.kv):
        part.register_forward_hook(lambda *_: calls.append(1))
    tm.generate(model, shape_of(name), [0, 1], condition(2))
    row = tm.VARIANTS[name]
    assert len(calls) == 2 * (row.times.steps if row.timed else 1)


def test_a_text_prefix_is_read_once() -> None:
    backbone, lengths = tm.Llama(SHAPE[-1], 24, 2, 2, condition_width=8), []
    backbone.blocks[0].register_forward_hook(lambda _, inputs, __: lengths.append(inputs[0].shape[1]))
    tm.generate(small_model("fhtm-3", backbone=backbone), SHAPE, [0, 1], condition(2))
    assert lengths == [condition(2).tokens.shape[1]] + [1] * (3 * SHAPE[0] * SHAPE[1])


def test_models_that_are_not_causal_are_rejected() -> None:
    with pytest.raises(ValueError, match="BertModel is not causal"):
        tm.HuggingFaceBackbone(hugging_face("Bert", intermediate_size=48), 4)


GATED = {"intermediate_size": 48, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("kind", "own"), [("GPT2", {}), ("OPT", {"ffn_dim": 48}), ("Qwen2", GATED), ("Mistral", GATED)]
)
def test_other_families_of_decoders_work(kind: str, own: dict[str, int]) -> None:
    model = small_model("fhtm-2", backbone=tm.HuggingFaceBackbone(hugging_face(kind, **own), 4, condition_width=8))
    model.loss(data_of("fhtm-2", 2), tm.RandomStreams([0, 1]), condition(2)).mean().backward()
    assert tm.generate(model, shape_of("fhtm-2"), [0, 1], condition(2)).x.isfinite().all()
