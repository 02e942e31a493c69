"""Encoders trained elsewhere."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_code_autoencoder, save_kl_autoencoder, save_text_encoder, tiny_autoencoder

from tmatch.codec.diffusers import load_autoencoder
from tmatch.conditioning.transformers import load_text_encoder
from tmatch.hub import digest, unavailable


def test_latents_are_the_mean_shifted_and_scaled_and_decoding_undoes_it(tmp_path: Path) -> None:
    autoencoder = load_autoencoder(str(save_kl_autoencoder(tmp_path / "kl")))
    x = torch.rand(2, 3, 16, 24)
    z = autoencoder.encode(x)
    mean = autoencoder.network.encode(2 * x - 1).latent_dist.mean
    torch.testing.assert_close(z, (mean - 0.25) * 0.5)
    assert (autoencoder.factor, autoencoder.channels, z.shape) == (2, 4, (2, 4, 8, 12))
    torch.testing.assert_close(autoencoder.decode(z), ((autoencoder.network.decode(mean).sample + 1) / 2).clamp(0, 1))
    with pytest.raises(ValueError, match="sides divisible by 2"):
        autoencoder.encode(torch.rand(1, 3, 15, 16))


def test_one_that_overflows_in_half_precision_is_upcast(tmp_path: Path) -> None:
    half = load_autoencoder(str(save_kl_autoencoder(tmp_path / "kl")), "float16")
    assert next(half.network.parameters()).dtype == torch.float32
    assert half.encode(torch.rand(1, 3, 8, 8)).dtype == torch.float32


@pytest.mark.parametrize("how", [{}, {"lookup_from_codebook": True}, {"norm_type": "spatial", "widths": (32, 32)}])
def test_codes_are_those_of_the_nearest_entries_and_decoding_looks_them_up(how: dict, tmp_path: Path) -> None:
    autoencoder = load_autoencoder(str(save_code_autoencoder(tmp_path / "vq", codes=32, **how)))
    x = torch.rand(2, 3, 16, 24)
    codes, network = autoencoder.encode(x), autoencoder.network
    z = network.encode(2 * x - 1).latents
    distance = (z[:, None] - network.quantize.embedding.weight[None, :, :, None, None]).square().sum(2)
    assert torch.equal(codes[:, 0].long(), distance.argmin(1))
    assert (autoencoder.codes, autoencoder.factor, autoencoder.channels, codes.shape) == (32, 2, 1, (2, 1, 8, 12))
    torch.testing.assert_close(autoencoder.decode(codes), ((network.decode(z).sample + 1) / 2).clamp(0, 1))
    network.quant_conv.bias.data[0] = torch.inf
    assert autoencoder.encode(x).isnan().all()


def test_the_files_of_a_tiny_autoencoder_are_its_diffusers_form(tmp_path: Path) -> None:
    network = tiny_autoencoder()
    files: dict[str, dict[str, torch.Tensor]] = {"encoder": {}, "decoder": {}}
    for name, weight in network.state_dict().items():
        part, _, layer, rest = name.split(".", 3)
        files[part][f"{int(layer) + (part == 'decoder')}.{rest}"] = weight
    for part, weights in files.items():
        save_file(weights, tmp_path / f"tae_{part}.safetensors")
    network.save_pretrained(tmp_path / "folder")
    one, other = (load_autoencoder(str(tmp_path / name)) for name in ("tae", "folder"))
    assert digest(one.network) == digest(other.network) == digest(network)
    x = torch.rand(1, 3, 16, 16)
    assert torch.equal(one.encode(x), other.encode(x))
    assert one.encode(x).shape == (1, 4, 2, 2)
    save_file({**files["decoder"], "99.weight": torch.zeros(1)}, tmp_path / "tae_decoder.safetensors")
    with pytest.raises(ValueError, match="names no tiny autoencoder's two files"):
        load_autoencoder(str(tmp_path / "tae"))


def save_bert(folder: Path, kind: str = "Bert", **tokenizer: object) -> Path:
    """A masked language model: it has no pooler."""
    import transformers

    save_text_encoder(folder)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=12, pad_token_id=0,
    )  # fmt: skip
    getattr(transformers, f"{kind}ForMaskedLM")(config).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **tokenizer}))
    return folder


def test_an_encoder_without_a_pooler_is_the_same_each_time(tmp_path: Path) -> None:
    one, other = (load_text_encoder(str(folder)) for folder in [save_bert(tmp_path)] * 2)
    assert one.identity() == other.identity()
    assert torch.equal(one(["a red circle"]).tokens, other(["a red circle"]).tokens)


def test_positions_that_begin_after_the_padding_are_not_overrun(tmp_path: Path) -> None:
    encoder = load_text_encoder(str(save_bert(tmp_path, "Roberta")))
    assert encoder.longest == 11
    assert encoder(["a red circle " * 10]).tokens.isfinite().all()


def test_encoders_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    text, kl = save_bert(tmp_path / "text"), save_kl_autoencoder(tmp_path / "kl")
    for file, part in ((text / "model.safetensors", "attention"), (kl / "diffusion_pytorch_model.safetensors", "mid")):
        save_file({key: x for key, x in load_file(file).items() if part not in key}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"text encoder .* is not whole: its files lack .*attention.*; fetch it again"):
        load_text_encoder(str(text))
    with pytest.raises(ValueError, match=r"autoencoder .* is not whole: its files lack .*mid.*; fetch it again"):
        load_autoencoder(str(kl))


def test_of_an_encoder_with_a_decoder_the_encoder_is_taken(tmp_path: Path) -> None:
    from transformers import BartConfig, BartModel

    folder = save_text_encoder(tmp_path)
    sizes = {
        f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "ffn_dim", "attention_heads")
    }
    network = BartModel(
        BartConfig(vocab_size=10, d_model=8, max_position_embeddings=12, pad_token_id=0, **sizes)
    ).eval()
    network.save_pretrained(folder)
    words = torch.tensor([[3, 4, 6, 1]])
    torch.testing.assert_close(
        load_text_encoder(str(folder))(["a red circle"]).tokens, network.encoder(words).last_hidden_state
    )


def test_networks_that_read_no_text_and_tokenizers_of_others_are_refused(tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel, ViTConfig, ViTModel

    folder = save_text_encoder(tmp_path / "text")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 16}
    ViTModel(ViTConfig(hidden_size=8, patch_size=8, **sizes)).save_pretrained(folder)
    with pytest.raises(ValueError, match="is no encoder of text that can be used here"):
        load_text_encoder(str(folder))
    T5EncoderModel(T5Config(vocab_size=4, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(folder)
    with pytest.raises(ValueError, match="has 10 words, and its weights 4"):
        load_text_encoder(str(folder))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "has no attribute"),
        ({"down_block_types": ["X", "Y"]}, "X does not exist"),
        ({"_class_name": None}, "network"),
    ],
)
def test_an_autoencoder_that_is_none_is_said_with_a_way_out(config: dict | list, words: str, tmp_path: Path) -> None:
    folder = save_kl_autoencoder(tmp_path / "kl")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config if config else config))
    with pytest.raises(ValueError, match=rf"There is no autoencoder .*{words}.*; give the name of one"):
        load_autoencoder(str(folder))


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(tmp_path: Path) -> None:
    encoder = load_text_encoder(str(save_bert(tmp_path, padding_side="left")))
    alone, together = encoder(["a red"]), encoder(["a red", "two blue square of a red"])
    torch.testing.assert_close(together.tokens[:1, :3], alone.tokens)


def test_a_caption_has_the_same_condition_in_any_company(tmp_path: Path) -> None:
    encoder = load_text_encoder(str(save_text_encoder(tmp_path)), longest=4)
    assert encoder.prompt_warnings(["a", ""]) == []
    assert encoder.prompt_warnings(["a", long := "a red square on a blue circle"]) == [
        f"the model reads the first 4 tokens of a prompt: {long!r}."
    ]
    assert encoder.prompt_warnings(["a red " * 1000]) == [
        f"the model reads the first 4 tokens of a prompt: {('a red ' * 10)[:57] + '...'!r}."
    ]
    alone, together = encoder(["a red circle"]), encoder(["a red circle", "a", "two blue square of a red circle"])
    torch.testing.assert_close(together.tokens[:1, :4], alone.tokens)
    assert together.mask.sum(1).tolist() == [4, 2, 4]  # with the mark that ends every caption; the last is cut
    assert encoder.lengths(["two blue square of a red circle", "a"]) == [8, 2]
    assert encoder.lengths([]) == []
    assert encoder.null().tokens.shape == (1, 1, 8)


def test_a_tokenizer_without_padding_is_taken_and_one_that_marks_no_text_is_not(tmp_path: Path) -> None:
    folder = save_text_encoder(tmp_path)
    settings, rules = folder / "tokenizer_config.json", folder / "tokenizer.json"
    settings.write_text(json.dumps({key: v for key, v in json.loads(settings.read_text()).items() if "pad" not in key}))
    assert load_text_encoder(str(folder))(["a", "a red circle"]).mask.sum(1).tolist() == [2, 4]
    rules.write_text(json.dumps({**json.loads(rules.read_text()), "post_processor": None}))
    with pytest.raises(ValueError, match="reads nothing where a caption is empty"):
        load_text_encoder(str(folder))


def test_a_digest_is_of_the_weights(tmp_path: Path) -> None:
    one, other, same = (
        load_text_encoder(str(save_text_encoder(tmp_path / str(k), seed))) for k, seed in enumerate((0, 1, 0))
    )
    assert one.identity()["digest"] == same.identity()["digest"] != other.identity()["digest"]


def test_a_digest_is_of_how_text_is_cut_and_not_of_what_was_cut_last(tmp_path: Path) -> None:
    folder = save_text_encoder(tmp_path / "text")
    encoder = load_text_encoder(str(folder), longest=3)
    before = encoder.identity()["digest"]
    encoder(["a red circle of a", "two"])
    assert encoder.identity()["digest"] == before
    encoder.tokenizer.save_pretrained(folder)
    assert load_text_encoder(str(folder)).identity()["digest"] == before
    rules = folder / "tokenizer.json"
    rules.write_text(json.dumps({**json.loads(rules.read_text()), "normalizer": {"type": "Lowercase"}}))
    other = load_text_encoder(str(folder))
    assert other.lengths(["A Red"]) == encoder.lengths(["A Red"])
    assert other.tokenizer.get_vocab() == encoder.tokenizer.get_vocab()
    assert other.identity()["digest"] != before


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no autoencoder .* to be had"):
        load_autoencoder(str(tmp_path))
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_text_encoder(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no text encoder .* to be had"):
        load_text_encoder(str(tmp_path))


@pytest.mark.parametrize("load", [load_autoencoder, load_text_encoder])
def test_a_path_that_is_not_there_is_no_name_on_the_hub(load: Callable[[str], object], tmp_path: Path) -> None:
    for path in ("/nope/net", "./nope", "../nope", "~/nope", str(tmp_path / "nope")):
        with pytest.raises(ValueError, match=f"There is no folder {path}; give the folder of a"):
            load(path)


@pytest.mark.parametrize("load", [load_autoencoder, load_text_encoder])
def test_a_hub_that_cannot_be_reached_is_said(
    load: Callable[[str], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="'someone/net' on this machine, and the hub cannot be reached"):
        load("someone/net")


def test_what_libraries_wrap_is_found() -> None:
    def wrapped(error: Exception) -> Exception:
        try:
            try:
                raise error
            except Exception as inner:
                raise OSError("it does not appear to have a file named config.json") from inner
        except OSError as outer:
            return outer

    for lost in (ConnectionError(), TimeoutError(), socket.gaierror(-2, "Name or service not known")):
        assert "cannot be reached" in str(unavailable("net", wrapped(lost), "look"))
    assert str(unavailable("net", wrapped(KeyError()), "look.")).endswith("named config.json); look.")


def test_a_caption_that_is_cut_frightens_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("transformers.tokenization_utils_base.logger.warning", lambda *words: said.append(str(words)))
    encoder = load_text_encoder(str(save_bert(tmp_path, model_max_length=4)))
    assert encoder.lengths(["a red square of a blue circle"]) == [8]
    encoder(["a red square of a blue circle"])
    assert said == []


def test_an_encoder_in_a_pickle_is_refused(tmp_path: Path) -> None:
    folder = save_text_encoder(tmp_path)
    network = load_text_encoder(str(folder)).network
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="to be had"):
        load_text_encoder(str(folder))


def test_no_code_of_a_text_encoder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_text_encoder(tmp_path / "text")
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Config: pass\nclass Model: pass\n"
    (folder / "modeling.py").write_text(trap)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "of-their-own",
        "auto_map": {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # somebody who agrees to everything
    with pytest.raises(ValueError, match="There is no text encoder"):
        load_text_encoder(str(folder))
    assert not (tmp_path / "ran").exists()
