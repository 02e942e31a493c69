"""Exported models, and the pipeline around a trained model."""

import copy
import itertools
import json
import os
import pickle
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_kl_autoencoder, save_text_encoder

from tmatch.app.cli import main
from tmatch.codec.diffusers import load_autoencoder
from tmatch.conditioning.transformers import load_text_encoder
from tmatch.data.images import to_image
from tmatch.hub import HubOptions
from tmatch.pipeline import Pipeline
from tmatch.runs import MODELS, load_model
from tmatch.runs.export import export


@pytest.fixture(scope="module")
def shared() -> Pipeline:
    """For tests that do not change it."""
    return Pipeline.from_pretrained("shapes-fm")


def fast(name: str) -> dict[str, int]:
    """Few steps of a shipped model; ARTM takes as many as it was trained with, and FM has no head."""
    steps = {} if name == "shapes-artm-3" else {"num_inference_steps": 1}
    return steps if name == "shapes-fm" else {**steps, "head_steps": 1}


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_pipeline_generates_the_same_images(name: str, tmp_path: Path) -> None:
    first = Pipeline.from_pretrained(name)
    first.save_pretrained(tmp_path / "mine")
    second = Pipeline.from_pretrained(tmp_path / "mine")
    one, other = (pipe("a red circle", seed=3, **fast(name)) for pipe in (first, second))
    assert torch.equal(one.tensors, other.tensors)
    assert one.images[0].size == (32, 32)
    files = {"model.json", "model.safetensors", "presets.json", "README.md"}
    assert {path.name for path in (tmp_path / "mine").iterdir()} == files


def test_an_image_equals_that_of_generate_and_does_not_depend_on_other_prompts(shared: Pipeline) -> None:
    both = shared(["a red circle", "a blue square"], num_images_per_prompt=2, num_inference_steps=2, guidance_scale=1.5)
    last = shared("a blue square", num_inference_steps=2, guidance_scale=1.5, seed=3)
    assert len(both.images) == 4
    torch.testing.assert_close(both.tensors[3], last.tensors[0], rtol=0, atol=1e-5)
    sampling = shared.model.sampling().updated(steps=2, guidance=1.5)
    assert torch.equal(shared.networks.generate(["a blue square"], [3], sampling).images, last.tensors)


@pytest.mark.parametrize("name", MODELS)
def test_images_have_the_requested_size(name: str) -> None:
    pipe = Pipeline.from_pretrained(name)
    own, wide = (pipe("a red circle", width=width, **fast(name)) for width in (32, 48))
    assert torch.equal(own.tensors, pipe("a red circle", **fast(name)).tensors)
    assert wide.images[0].size == (48, 32)


@pytest.mark.parametrize("name", ["shapes-dtm-from-fm", "shapes-artm-3"])
def test_threads_share_a_pipeline(name: str) -> None:
    pipe, prompts = Pipeline.from_pretrained(name), ["a red circle", "a blue square", "three crosses"]
    calls = [{"prompt": prompts[: 1 + k % 3], "seed": k, "guidance_scale": k / 2, **fast(name)} for k in range(6)]
    expected, end = [pipe(**call) for call in calls], time.monotonic() + 1

    def work(first: int) -> None:
        for k in itertools.cycle([*range(first, 6), *range(first)]):
            found = pipe(**calls[k])
            assert torch.equal(found.tensors, expected[k].tensors)
            assert found.evaluations == expected[k].evaluations
            if time.monotonic() > end:
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [k % 6 for k in range(8)]))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"guidance_scale": "much"}, "guidance_scale"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [None]}, "prompt"),
        ({"negative_prompt": ["a square"]}, "prompt"),
        ({"seed": [1, 2]}, "2 seeds"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"seed": 2**63 - 1, "num_images_per_prompt": 2}, "seed"),
        ({"num_inference_steps": 10**9}, "num_inference_steps"),
        ({"num_images_per_prompt": 2**70}, "num_images_per_prompt"),
        ({"seed": 1, "generator": torch.Generator()}, "generator"),
        ({"output_type": "jpg"}, "output_type"),
        ({"height": 33}, "33"),
        ({"height": 0}, "0"),
    ],
)
def test_an_invalid_argument_is_named(arguments: dict, named: str, shared: Pipeline) -> None:
    with pytest.raises(ValueError, match=f"(?i){named}"):
        shared(**{"prompt": "a red circle", **arguments})


def test_seeds_may_be_numbers_and_arrays_of_any_library(shared: Pipeline) -> None:
    expected = shared("a red circle", seed=3, num_inference_steps=1).tensors
    for seed in (np.int64(3), np.array([3]), torch.tensor(3), torch.tensor([3]), (3,)):
        assert torch.equal(shared("a red circle", seed=seed, num_inference_steps=1).tensors, expected)


def test_a_pipeline_can_be_copied_and_pickled(shared: Pipeline) -> None:
    first, second = (one("a red circle", seed=3, num_inference_steps=1) for one in (shared, copy.deepcopy(shared)))
    assert torch.equal(first.tensors, second.tensors)
    assert pickle.dumps(shared), "as multiprocessing does"


def test_a_generator_gives_a_seed_and_advances_and_a_list_has_one_per_image(shared: Pipeline) -> None:
    """As in diffusers: equal generators give equal images, and different ones on the next call."""
    pipe, both, how = shared, ["a red circle", "a blue square"], {"num_inference_steps": 1}
    began = [torch.Generator().manual_seed(7) for _ in range(2)]
    first, again = (pipe(both, generator=one, **how).tensors for one in began)
    assert torch.equal(first, again)
    assert not torch.equal(pipe(both, generator=began[0], **how).tensors, first)
    each = [[torch.Generator().manual_seed(seed) for seed in (7, 3)] for _ in range(2)]
    assert torch.equal(*(pipe(both, generator=generators, **how).tensors for generators in each))
    torch.testing.assert_close(pipe(both, generator=torch.Generator().manual_seed(7), **how).tensors[0], first[0])
    listed = pipe(both, seed=[7, 3], **how).tensors
    torch.testing.assert_close(pipe(both[1], seed=3, **how).tensors[0], listed[1], rtol=0, atol=1e-5)


def test_images_have_the_requested_type(shared: Pipeline) -> None:
    pil, pt, np = (
        shared("a red circle", width=48, num_inference_steps=1, output_type=kind) for kind in ("pil", "pt", "np")
    )
    assert torch.equal(pt.images, pil.tensors)
    assert np.images.shape == (1, 32, 48, 3)
    assert torch.equal(torch.from_numpy(np.images).movedim(-1, 1), pt.images)
    assert pil.images[0].tobytes() == to_image(pt.images[0]).tobytes()


def test_a_missing_device_is_rejected(shared: Pipeline) -> None:
    assert shared.to("cpu").to(torch.device("cpu")) is shared
    for device in ("cpu:3", "cuda:99", "nowhere", "meta"):
        with pytest.raises(ValueError, match=device):
            shared.to(device)


def test_bfloat16_gives_nearly_the_same_images(tmp_path: Path) -> None:
    how = {"num_inference_steps": 2, "head_steps": 1}
    fine = Pipeline.from_pretrained("shapes-dtm-mean")
    for coarse in (
        Pipeline.from_pretrained("shapes-dtm-mean", dtype=torch.bfloat16),
        Pipeline.from_pretrained("shapes-dtm-mean").to(torch.bfloat16),
        Pipeline.from_pretrained("shapes-dtm-mean").to("cpu", torch.bfloat16).to("cpu"),
    ):
        assert coarse.precision == "bfloat16"
    nearest, own = coarse("a red circle", **how).tensors, fine("a red circle", **how).tensors
    assert nearest.dtype == torch.float32
    assert not torch.equal(nearest, own)
    assert (nearest - own).abs().mean() < 0.02
    coarse.save_pretrained(tmp_path / "mine")
    assert {tensor.dtype for tensor in load_file(tmp_path / "mine" / "model.safetensors").values()} == {torch.float32}
    assert torch.equal(coarse.to(dtype=torch.float32)("a red circle", **how).tensors, own)


def test_an_unsupported_dtype_is_rejected(shared: Pipeline) -> None:
    for dtype in (torch.float16, "bfloat16"):
        with pytest.raises(ValueError, match="bfloat16"):
            Pipeline.from_pretrained("shapes-fm", dtype=dtype)
    with pytest.raises(ValueError, match="float64"):
        shared.to("cpu", torch.float64)
    assert shared.precision == "float32"
    with pytest.raises(ValueError, match="float16"):
        shared.save_pretrained("x", torch.int8)
    with pytest.raises(ValueError, match="path is empty"):
        shared.save_pretrained("")


def test_the_model_card_describes_the_model_and_keeps_edits(tmp_path: Path) -> None:
    main(["export", "shapes-dtm-mean", "--out", str(tmp_path / "mine")])
    card = (tmp_path / "mine" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: tmatch\npipeline_tag: text-to-image\n")
    assert "`dtm-mean`" in card
    assert "20,000 steps" in card
    with pytest.raises(ValueError, match="is not empty"):
        export(load_model("shapes-fm"), tmp_path / "mine")
    (tmp_path / "mine" / "README.md").write_text(f"{card}\nRendered shapes.\n")
    main(["export", str(tmp_path / "mine"), "--out", str(tmp_path / "again")])
    again = (tmp_path / "again" / "README.md").read_text()
    assert again.endswith("Rendered shapes.\n"), "edits are kept"
    assert 'from_pretrained("again")' in again
    (tmp_path / "mine" / "README.md").write_text("other notes")
    main(["export", str(tmp_path / "mine"), "--out", str(tmp_path / "third")])
    assert (tmp_path / "third" / "README.md").read_text().startswith("---\nlibrary_name: tmatch")


@pytest.fixture(scope="module")
def prepared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on shards whose encoders are local folders."""
    from PIL import Image

    tmp_path = tmp_path_factory.mktemp("prepared")
    (tmp_path / "images").mkdir()
    Image.new("RGB", (16, 16), "red").save(tmp_path / "images" / "0.png")
    (tmp_path / "images" / "metadata.jsonl").write_text(json.dumps({"file_name": "0.png", "text": "a red square"}))
    autoencoder, text = save_kl_autoencoder(tmp_path / "kl"), save_text_encoder(tmp_path / "text")
    encoders = ["--autoencoder", str(autoencoder), "--text", str(text)]
    main(["prepare", str(tmp_path / "images"), "--out", str(tmp_path / "shards"), *encoders, "--size", "16"])
    sizes = {"backbone.width": 16, "backbone.depth": 1, "backbone.heads": 2, "head.width": 16, "head.depth": 1}
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    train = ["--train.steps", "1", "--train.batch-size", "1", "--train.preview-every", "0"]
    folders = ["--data.folders", str(tmp_path / "shards"), "--out", str(tmp_path / "run")]
    main(["train", "shards-dtm", *folders, *words, *train])
    return tmp_path


def test_local_encoders_are_exported_with_the_model(prepared_run: Path) -> None:
    folder, how = prepared_run, {"num_inference_steps": 1, "head_steps": 1}
    for file in ("text/config.json", "text/tokenizer_config.json", "kl/config.json"):
        settings, path = json.loads((folder / file).read_text()), str(folder / "images")
        more = {"_name_or_path": path, "special_tokens_map_file": path, "trained": {"on": [path]}}
        (folder / file).write_text(json.dumps({**settings, **more}))
    before = Pipeline.from_pretrained(folder / "run")("a red square", **how).tensors
    mask = os.umask(0o027)
    Pipeline.from_pretrained(folder / "run").save_pretrained(folder / "mine")
    os.umask(mask)
    files = [file for file in (folder / "mine").rglob("*.*") if file.is_file()]
    assert len(files) > 6
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o640}
    assert not [file for file in files if str(folder).encode() in file.read_bytes()], "local paths are private"
    for name in ("kl", "text", "run", "shards"):
        shutil.move(folder / name, folder / f"{name}-away")
    assert torch.equal(Pipeline.from_pretrained(folder / "mine")("a red square", **how).tensors, before)
    Pipeline.from_pretrained(folder / "mine").save_pretrained(folder / "again")
    assert torch.equal(Pipeline.from_pretrained(folder / "again")("a red square", **how).tensors, before)
    weights = folder / "mine" / "autoencoder" / "diffusion_pytorch_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ValueError, match="weights"):
        Pipeline.from_pretrained(folder / "mine")
    for name in ("kl", "text", "run", "shards"):
        shutil.move(folder / f"{name}-away", folder / name)


def test_only_data_and_no_code_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = {}

    def snapshot(name: str, **how: object) -> str:
        requested.update(how, name=name)
        return str(tmp_path / "copy")

    export(load_model("shapes-fm"), tmp_path / "copy", torch.float32)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    Pipeline.from_pretrained("someone/shapes", revision="v1")
    assert (requested["name"], requested["revision"]) == ("someone/shapes", "v1")
    assert not [
        pattern for pattern in requested["allow_patterns"] if pattern.endswith((".py", ".bin", ".pt", ".pkl", "*"))
    ]
    (tmp_path / "someone" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for load in (load_model, Pipeline.from_pretrained):
        requested.clear()
        load("hf:someone/other")
        assert requested["name"] == "someone/other"


def test_a_missing_model_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ValueError, match="hub model 'someone/nothing' is not cached on this machine and the hub cannot"
    ):
        Pipeline.from_pretrained("someone/nothing", local_files_only=True)
    for path in ("/nope", "./nope", "../nope", "~/nope", str(tmp_path / "nope")):
        with pytest.raises(ValueError, match=f"There is no folder {path}"):
            Pipeline.from_pretrained(path)
    with pytest.raises(ValueError, match="There is no model 'shapes-fmm'"):
        Pipeline.from_pretrained("shapes-fmm")


def test_encoders_are_loaded_with_the_hub_options_of_the_model(
    prepared_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[object] = []
    for load in (load_autoencoder, load_text_encoder):
        watch = lambda *given, load=load: requested.append(given[-1]) or load(*given)  # noqa: E731
        monkeypatch.setattr(f"tmatch.datasets.shards.{load.__name__}", watch)
    Pipeline.from_pretrained(prepared_run / "run", token="secret", local_files_only=True)
    assert requested == [HubOptions("secret", offline=True)] * 2


class Hub:
    """Stands for the API of the hub and records what is uploaded."""

    sent: ClassVar[dict[str, object]] = {}
    private = True

    def __init__(self, token: str | None) -> None:
        self.sent["token"] = token

    def create_repo(self, name: str, **how: object) -> None:
        self.sent.update(how)

    def model_info(self, name: str) -> "Hub":
        return self

    def upload_folder(self, repo_id: str, folder_path: Path, allow_patterns: list[str]) -> str:
        self.sent["files"] = {path.name for path in folder_path.iterdir()}
        return f"url/{repo_id}"


def test_a_private_model_is_not_uploaded_to_a_public_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "private", False)
    monkeypatch.setattr(Hub, "sent", {})
    with pytest.raises(SystemExit, match="2"):
        main(["export", "shapes-fm", "--out", str(tmp_path / "mine"), "--push", "someone/shapes", "--private"])
    error = capsys.readouterr().err
    assert "someone/shapes exists on the hub and is public" in error
    assert "hf upload" not in error, "that would publish it"
    assert "files" not in Hub.sent


def test_a_model_is_uploaded_with_its_card(shared: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    for private in (False, True):
        assert shared.push_to_hub("someone/shapes", private=private) == "url/someone/shapes"
        assert Hub.sent["private"] is private
    assert Hub.sent["files"] == {"model.json", "model.safetensors", "presets.json", "README.md"}


def test_a_failed_upload_keeps_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("connection reset")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", fail)
    with pytest.raises(SystemExit, match="2"):
        main(["export", "shapes-fm", "--out", str(tmp_path / "mine"), "--push", "someone/shapes"])
    error = capsys.readouterr().err
    assert "(connection reset)" in error
    assert f"`hf upload someone/shapes {tmp_path / 'mine'}`" in error
    load_model(str(tmp_path / "mine"))


def test_unknown_words_of_a_prompt_are_reported(shared: Pipeline) -> None:
    with pytest.warns(UserWarning, match="does not know 'zebra'"):
        shared("a zebra", num_inference_steps=1)
