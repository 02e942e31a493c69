"""Pretrained encoders, built tiny and saved as they are on the hub."""

import json
import shutil
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_code_autoencoder, save_kl_autoencoder, save_text_encoder, tiny_autoencoder
from watch import opened_files

from tmatch.codec.diffusers import load_autoencoder
from tmatch.conditioning.transformers import PretrainedText, load_text_encoder
from tmatch.hub import HubOptions, fingerprint, loading


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_kl_autoencoder(folder / "kl")
    save_text_encoder(folder / "text")
    save_bert(folder / "bert")
    return folder


@pytest.fixture(scope="module")
def text(saved: Path) -> PretrainedText:
    return load_text_encoder(str(saved / "text"), max_length=4)


def copy(saved: Path, folder: Path) -> Path:
    return Path(shutil.copytree(saved, folder))


def save_bert(folder: Path, kind: str = "Bert", **tokenizer: object) -> Path:
    """A masked language model, which has no pooler."""
    import transformers

    save_text_encoder(folder)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=12, pad_token_id=0,
    )  # fmt: skip
    getattr(transformers, f"{kind}ForMaskedLM")(config).save_pretrained(folder)
    update(folder / "tokenizer_config.json", **tokenizer)
    return folder


def update(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_threads_share_a_text_encoder(text: PretrainedText) -> None:
    """Counting the tokens of a prompt, and encoding it, set different modes of the same tokenizer."""
    prompts = [["a red circle"], ["two", "a blue square of a red circle"]]
    expected, wrong = [text(one) for one in prompts], list[str]()

    def work(k: int) -> None:
        for i in range(k, k + 100):
            found = text(prompts[i % 2])
            if not (torch.equal(found.tokens, expected[i % 2].tokens) and text.lengths(["two of a red circle"]) == [6]):
                wrong.append(prompts[i % 2][0])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_latents_are_the_shifted_and_scaled_mean_and_decoding_inverts_that(saved: Path) -> None:
    autoencoder = load_autoencoder(str(saved / "kl"))
    x = torch.rand(2, 3, 16, 24)
    z = autoencoder.encode(x)
    mean = autoencoder.network.encode(2 * x - 1).latent_dist.mean
    torch.testing.assert_close(z, (mean - 0.25) * 0.5)
    assert (autoencoder.factor, autoencoder.channels, z.shape) == (2, 4, (2, 4, 8, 12))
    torch.testing.assert_close(autoencoder.decode(z), ((autoencoder.network.decode(mean).sample + 1) / 2).clamp(0, 1))
    with pytest.raises(ValueError, match="divisible by 2"):
        autoencoder.encode(torch.rand(1, 3, 15, 16))


def test_an_autoencoder_that_overflows_in_half_precision_is_upcast(saved: Path) -> None:
    half = load_autoencoder(str(saved / "kl"), "float16")
    assert next(half.network.parameters()).dtype == torch.float32
    assert half.encode(torch.rand(1, 3, 8, 8)).dtype == torch.float32


@pytest.mark.parametrize("options", [{}, {"lookup_from_codebook": True}, {"norm_type": "spatial", "widths": (32, 32)}])
def test_codes_are_the_nearest_codebook_entries_and_decoding_looks_them_up(options: dict, tmp_path: Path) -> None:
    autoencoder = load_autoencoder(str(save_code_autoencoder(tmp_path / "vq", codes=32, **options)))
    x = torch.rand(2, 3, 16, 24)
    codes, network = autoencoder.encode(x), autoencoder.network
    z = network.encode(2 * x - 1).latents
    distance = (z[:, None] - network.quantize.embedding.weight[None, :, :, None, None]).square().sum(2)
    assert torch.equal(codes[:, 0].long(), distance.argmin(1))
    assert (autoencoder.codebook_size, autoencoder.factor, autoencoder.channels) == (32, 2, 1)
    assert codes.shape == (2, 1, 8, 12)
    torch.testing.assert_close(autoencoder.decode(codes), ((network.decode(z).sample + 1) / 2).clamp(0, 1))
    network.quant_conv.bias.data[0] = torch.inf
    assert autoencoder.encode(x).isnan().all()


def test_the_two_files_of_a_tiny_autoencoder_equal_its_diffusers_folder(tmp_path: Path) -> None:
    network = tiny_autoencoder()
    files: dict[str, dict[str, torch.Tensor]] = {"encoder": {}, "decoder": {}}
    for name, weight in network.state_dict().items():
        part, _, layer, rest = name.split(".", 3)
        files[part][f"{int(layer) + (part == 'decoder')}.{rest}"] = weight
    for part, weights in files.items():
        save_file(weights, tmp_path / f"tae_{part}.safetensors")
    network.save_pretrained(tmp_path / "folder")
    one, other = (load_autoencoder(str(tmp_path / name)) for name in ("tae", "folder"))
    assert fingerprint(one.network) == fingerprint(other.network) == fingerprint(network)
    x = torch.rand(1, 3, 16, 16)
    assert torch.equal(one.encode(x), other.encode(x))
    assert one.encode(x).shape == (1, 4, 2, 2)
    save_file({**files["decoder"], "99.weight": torch.zeros(1)}, tmp_path / "tae_decoder.safetensors")
    with pytest.raises(ValueError, match=r"tae_encoder.safetensors' cannot be loaded"):
        load_autoencoder(str(tmp_path / "tae"))


def test_an_encoder_without_a_pooler_is_the_same_each_time(saved: Path) -> None:
    one, other = (load_text_encoder(str(saved / "bert")) for _ in range(2))
    assert one.identity() == other.identity()
    assert torch.equal(one(["a red circle"]).tokens, other(["a red circle"]).tokens)


def test_positions_that_start_after_the_padding_do_not_overflow(tmp_path: Path) -> None:
    encoder = load_text_encoder(str(save_bert(tmp_path, "Roberta")))
    assert encoder.max_length == 11
    assert encoder(["a red circle " * 10]).tokens.isfinite().all()


def test_incomplete_encoders_are_rejected(saved: Path, tmp_path: Path) -> None:
    bert, kl = (copy(saved / name, tmp_path / name) for name in ("bert", "kl"))
    for file, part in ((bert / "model.safetensors", "attention"), (kl / "diffusion_pytorch_model.safetensors", "mid")):
        save_file({key: x for key, x in load_file(file).items() if part not in key}, file, metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"text encoder .* cannot be loaded .its files are incomplete and lack .*attention"
    ):
        load_text_encoder(str(bert))
    with pytest.raises(ValueError, match=r"autoencoder .* cannot be loaded .its files are incomplete and lack .*mid"):
        load_autoencoder(str(kl))


def test_only_the_encoder_of_an_encoder_decoder_is_used(tmp_path: Path) -> None:
    from transformers import BartConfig, BartModel

    folder = save_text_encoder(tmp_path)
    sizes = {
        f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "ffn_dim", "attention_heads")
    }
    network = BartModel(BartConfig(vocab_size=10, d_model=8, max_position_embeddings=12, pad_token_id=0, **sizes))
    network.eval().save_pretrained(folder)
    words = torch.tensor([[3, 4, 6, 1]])
    torch.testing.assert_close(
        load_text_encoder(str(folder))(["a red circle"]).tokens, network.encoder(words).last_hidden_state
    )


def test_networks_that_do_not_read_text_and_foreign_tokenizers_are_rejected(tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel, ViTConfig, ViTModel

    folder = save_text_encoder(tmp_path / "text")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 16}
    ViTModel(ViTConfig(hidden_size=8, patch_size=8, **sizes)).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"text encoder .* cannot be loaded"):
        load_text_encoder(str(folder))
    T5EncoderModel(T5Config(vocab_size=4, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(folder)
    with pytest.raises(ValueError, match="has 10 tokens, but its weights have 4"):
        load_text_encoder(str(folder))


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(tmp_path: Path) -> None:
    encoder = load_text_encoder(str(save_bert(tmp_path, padding_side="left")))
    alone, together = encoder(["a red"]), encoder(["a red", "two blue square of a red"])
    torch.testing.assert_close(together.tokens[:1, :3], alone.tokens)


def test_a_condition_does_not_depend_on_its_batch(text: PretrainedText) -> None:
    alone, together = text(["a red circle"]), text(["a red circle", "a", "two blue square of a red circle"])
    torch.testing.assert_close(together.tokens[:1, :4], alone.tokens)
    assert together.mask.sum(1).tolist() == [4, 2, 4]  # with the end token; the last is truncated
    assert text.lengths(["two blue square of a red circle", "a"]) == [8, 2]
    assert text.lengths([]) == []
    assert text.prompt_warnings(["a", ""]) == []
    assert "first 4 tokens" in text.prompt_warnings(["a", "a red " * 1000])[0]
    assert text([text.null]).tokens.shape == (1, 1, 8)
    with pytest.raises(ValueError, match="must be a string; got 7"):
        text([7])


def test_a_tokenizer_without_padding_is_accepted_and_one_without_special_tokens_rejected(
    saved: Path, tmp_path: Path
) -> None:
    folder = copy(saved / "text", tmp_path / "text")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({key: v for key, v in json.loads(settings.read_text()).items() if "pad" not in key}))
    assert load_text_encoder(str(folder))(["a", "a red circle"]).mask.sum(1).tolist() == [2, 4]
    update(folder / "tokenizer.json", post_processor=None)
    with pytest.raises(ValueError, match="the empty caption, which guidance needs, has no tokens"):
        load_text_encoder(str(folder))


def test_the_fingerprint_covers_weights_and_tokenizer_but_not_the_last_call(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved / "text", tmp_path / "text")
    encoder = load_text_encoder(str(folder), max_length=3)
    before = encoder.identity()["digest"]
    encoder(["a red circle of a", "two"])
    assert encoder.identity()["digest"] == before
    encoder.tokenizer.save_pretrained(folder)
    assert load_text_encoder(str(folder)).identity()["digest"] == before
    assert load_text_encoder(str(save_text_encoder(tmp_path / "other", 1))).identity()["digest"] != before
    update(folder / "tokenizer.json", normalizer={"type": "Lowercase"})
    other = load_text_encoder(str(folder))
    assert other.tokenizer.get_vocab() == encoder.tokenizer.get_vocab()
    assert other.identity()["digest"] != before


def test_a_folder_without_an_encoder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"autoencoder .* cannot be loaded"):
        load_autoencoder(str(tmp_path))
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_text_encoder(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"text encoder .* cannot be loaded"):
        load_text_encoder(str(tmp_path))


@pytest.mark.parametrize("load", [load_autoencoder, load_text_encoder])
def test_a_missing_path_is_not_looked_up_on_the_hub(load: Callable[[str], object], tmp_path: Path) -> None:
    for path in ("/nope/net", "./nope", "../nope", "~/nope", str(tmp_path / "nope")):
        with pytest.raises(ValueError, match=f"There is no folder {path}"):
            load(path)


@pytest.mark.parametrize("load", [load_autoencoder, load_text_encoder])
def test_an_unreachable_hub_is_reported(load: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="'someone/net' is not cached on this machine and the hub cannot be reached"):
        load("someone/net")


@pytest.mark.parametrize("cause", [ConnectionError(), TimeoutError(), socket.gaierror(-2, "unknown"), KeyError()])
def test_a_network_error_is_recognised_behind_the_error_of_a_library(cause: Exception) -> None:
    expected = r"named config.json\); advice" if isinstance(cause, KeyError) else "cannot be reached"
    with pytest.raises(ValueError, match=expected), loading("net", "name", "advice."):
        raise OSError("it does not appear to have a file named config.json") from cause


def test_pickled_weights_are_rejected(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved / "text", tmp_path / "text")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_text_encoder(str(folder))


def test_remote_code_is_never_run(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy(saved / "text", tmp_path / "text")
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Config: pass\nclass Model: pass\n"
    (folder / "modeling.py").write_text(trap)
    code = {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"}
    update(folder / "config.json", model_type="custom", auto_map=code)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # a user who agrees to everything
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_text_encoder(str(folder))
    assert not (tmp_path / "ran").exists()


LOADERS = {"text": (load_text_encoder, "model"), "kl": (load_autoencoder, "diffusion_pytorch_model")}
BOTH = pytest.mark.parametrize("kind", LOADERS)


def cached(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a network that the cache of the hub stores: its files are links to blobs."""
    repository = cache / "models--someone--net"
    for number, file in enumerate(sorted(folder.iterdir())):
        link = repository / "snapshots" / ("1" * 40) / file.name
        (repository / "blobs").mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink():
            file.rename(link)
            continue
        file.rename(repository / "blobs" / str(number))
        link.symlink_to(f"../../blobs/{number}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return "someone/net"


@BOTH
@pytest.mark.parametrize("where", ["folder", "cache"])
@pytest.mark.parametrize(
    "target",
    ["evil.bin", "../evil.bin", "../../outside/evil.bin", "../../outside/secret.safetensors", "absolute", "link"],
)
def test_an_index_names_only_safetensors_of_its_folder(
    target: str, where: str, kind: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, stem = LOADERS[kind]
    folder, outside = copy(saved / kind, tmp_path / "nets" / kind), tmp_path / "outside"
    outside.mkdir()
    weights = load_file(file := folder / f"{stem}.safetensors")
    file.rename(outside / "secret.safetensors")
    for place in (folder, folder.parent, outside):
        torch.save(weights, place / "evil.bin")
    name = {"absolute": str(outside / "secret.safetensors"), "link": f"{stem}-1-of-1.safetensors"}.get(target, target)
    if target == "link":
        (folder / name).symlink_to(outside / "secret.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, name)}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))
    name = str(folder) if where == "folder" else cached(folder, tmp_path / "cache", monkeypatch)
    with opened_files(outside) as opened, opened_files(folder) as inside, pytest.raises(ValueError) as raised:  # noqa: PT011
        load(name, hub=HubOptions(offline=True))
    assert "safetensors file in its folder" in str(raised.value) or "outside its folder" in str(raised.value)
    assert "weights_only" not in str(raised.value)
    assert not opened
    assert "evil.bin" not in inside


@BOTH
def test_networks_in_parts_and_in_the_cache_of_the_hub_are_loaded(
    kind: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, stem = LOADERS[kind]
    folder = copy(saved / kind, tmp_path / kind)
    expected = load(str(folder)).identity()["digest"]
    weights = load_file(file := folder / f"{stem}.safetensors")
    file.unlink()
    parts = {name: f"{stem}-0000{k % 2 + 1}-of-00002.safetensors" for k, name in enumerate(weights)}
    for part in set(parts.values()):
        save_file({n: x for n, x in weights.items() if parts[n] == part}, folder / part, metadata={"format": "pt"})
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    assert load(str(folder)).identity()["digest"] == expected
    loaded = load(cached(folder, tmp_path / "cache", monkeypatch), hub=HubOptions(offline=True))
    assert (loaded.name, loaded.identity()["digest"]) == ("someone/net", expected)


def link(name: str) -> Callable[[Path, Path], object]:
    def damage(folder: Path, outside: Path) -> None:
        shutil.move(folder / name, outside / name)
        (folder / name).symlink_to(outside / name)

    return damage


def adapter(folder: Path, outside: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(outside)}))
    (folder / "config.json").rename(outside / "config.json")


REDIRECTIONS: dict[str, Callable[[Path, Path], object]] = {
    "weights": lambda folder, _: update(folder / "config.json", transformers_weights="../outside/model.safetensors"),
    "quantization": lambda folder, _: update(folder / "config.json", quantization_config={"quant_method": "hqq"}),
    "adapter": adapter,
    "linked weights": link("model.safetensors"),
    "linked configuration": link("config.json"),
    "linked tokenizer": link("tokenizer.json"),
    **{
        f"{key} {value}": lambda folder, _, key=key, value=value: update(folder / "config.json", **{key: value})
        for key in ("num_layers", "num_decoder_layers", "d_model", "d_ff", "vocab_size", "num_heads")
        for value in (10**9, 10**12)
    },
    "deep configuration": lambda folder, _: (folder / "config.json").write_text('{"a":' * 100_000),
    "truncated": lambda folder, _: (folder / "model.safetensors").write_bytes(b"\0" * 20),
    "NaN": lambda folder, _: save_file(
        {key: x.fill_(torch.nan) for key, x in load_file(folder / "model.safetensors").items()},
        folder / "model.safetensors", metadata={"format": "pt"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", REDIRECTIONS.values(), ids=REDIRECTIONS)
def test_a_hostile_text_encoder_is_rejected(
    damage: Callable[[Path, Path], object], saved: Path, tmp_path: Path
) -> None:
    folder, outside = copy(saved / "text", tmp_path / "text"), copy(saved / "text", tmp_path / "outside")
    damage(folder, outside)
    with opened_files(outside) as opened, pytest.raises(ValueError, match=r"text encoder .* cannot be loaded"):
        load_text_encoder(str(folder))
    assert not opened


@pytest.mark.parametrize(
    ("key", "value"), [("block_out_channels", [2**40, 8]), ("layers_per_block", 10**9), ("latent_channels", 10**8)]
)
def test_an_autoencoder_larger_than_its_weights_is_rejected(
    key: str, value: object, saved: Path, tmp_path: Path
) -> None:
    folder = copy(saved / "kl", tmp_path / "kl")
    update(folder / "config.json", **{key: value})
    with pytest.raises(ValueError, match=r"autoencoder .* cannot be loaded"):
        load_autoencoder(str(folder))


def test_files_that_a_tokenizer_names_elsewhere_are_not_opened(saved: Path, tmp_path: Path) -> None:
    folder, outside = copy(saved / "text", tmp_path / "text"), copy(saved / "text", tmp_path / "outside")
    names = ("tokenizer_file", "vocab_file", "special_tokens_map_file", "added_tokens_file", "chat_template_file")
    named = {name: str(outside / "tokenizer.json") for name in names}
    code = {"AutoTokenizer": ["code.Tokenizer", None]}
    files = ["../outside/tokenizer.json", "tokenizer.999.0.0.json"]
    update(
        folder / "tokenizer_config.json", **named, auto_map=code, fast_tokenizer_files=files, init_inputs=[str(outside)]
    )
    (folder / "chat_template.jinja").symlink_to(outside / "tokenizer.json")
    expected = load_text_encoder(str(saved / "text")).identity()["digest"]
    with opened_files(outside) as opened:
        assert load_text_encoder(str(folder)).identity()["digest"] == expected
    assert not opened


@pytest.mark.parametrize("change", [lambda x: x.fill_(torch.nan), lambda x: x.new_zeros(0, 2**40, 3, 3)])
def test_the_files_of_a_tiny_autoencoder_are_compared_before_it_is_built(
    change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    weights = {f"{k}.weight": torch.zeros(64, 4, 3, 3) for k in (0, 1)}
    save_file({"0.weight": weights["0.weight"]}, tmp_path / "tae_encoder.safetensors")
    save_file({"1.weight": change(weights["1.weight"])}, tmp_path / "tae_decoder.safetensors")
    with pytest.raises(ValueError, match=r"tae_encoder.safetensors' cannot be loaded"):
        load_autoencoder(str(tmp_path / "tae"))
