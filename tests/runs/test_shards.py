"""Training on data shards."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny import save_code_autoencoder, save_kl_autoencoder, save_text_encoder

from tmatch.app.cli import main
from tmatch.codec import Patchify
from tmatch.codec.diffusers import load_autoencoder
from tmatch.data.images import center_crop
from tmatch.data.shards import ShardSet
from tmatch.datasets import ShardsData
from tmatch.datasets.shards import _first_samples
from tmatch.generation.config import SamplingConfig
from tmatch.runs import BackboneConfig, RunConfig, fit, load_model
from tmatch.train import TrainConfig, checkpoint
from tmatch.variants import VARIANTS, HeadConfig

RESULT = {"weights": "model.safetensors", "images": 24}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "images").mkdir()
    lines = []
    for k in range(24):
        size, colour = ((20, 20), (30, 18))[k % 3 == 0], ("red", "blue")[k % 2]
        Image.new("RGB", size, colour).save(folder / "images" / f"{k}.png")
        lines.append(json.dumps({"file_name": f"{k}.png", "text": f"a {colour} square"}))
    (folder / "images" / "metadata.jsonl").write_text("\n".join(lines))
    kl, text = save_kl_autoencoder(folder / "kl"), save_text_encoder(folder / "text")
    encoders = ["--autoencoder", str(kl), "--text", str(text)]
    sizes = ["--size", "16", "--multiple", "4", "--crop", "buckets", "--chunk", "7"]
    main(["prepare", str(folder / "images"), "--out", str(folder / "shards"), *encoders, *sizes])
    return folder


def shards_run(folder: Path, variant: str = "dtm", data: dict[str, object] | None = None, **train: object) -> RunConfig:
    discrete = VARIANTS[variant].discrete
    shards = {"folders": folder / "shards", "validation": folder / "shards", **(data or {})}
    return RunConfig(
        train=TrainConfig.model_validate({"steps": 6, "batch_size": 4, "device": "cpu", "validate_every": 3, **train}),
        variant=variant,
        data=ShardsData.model_validate(shards),
        backbone=BackboneConfig(width=16, depth=1, heads=2),
        head=HeadConfig(width=16, depth=1),
        sampling=SamplingConfig(steps=None if discrete else 2),
        patch=(1, 1) if discrete else (2, 2),
    )


def test_held_out_samples_have_the_most_common_size(shards: Path) -> None:
    held_out = _first_samples(ShardSet(shards / "shards"), 256, Patchify((2, 2)), torch.device("cpu"))
    assert held_out.data.x.shape == (16, 4, 4, 16), "the squares, two thirds of all images"


@pytest.mark.parametrize("variant", ["ar-discrete", "mar-discrete"])
def test_a_run_on_shards_of_codes(variant: str, shards: Path, tmp_path: Path) -> None:
    encoders = ["--autoencoder", str(save_code_autoencoder(tmp_path / "vq", 3000)), "--text", str(shards / "text")]
    main(["prepare", str(shards / "images"), "--out", str(tmp_path / "shards"), *encoders, "--size", "16"])
    red = center_crop(Image.new("RGB", (20, 20), "red"), 16, 16)[None] / 255
    codes = load_autoencoder(str(tmp_path / "vq")).encode(red)[0].int()
    assert codes.max() > 2048, "more than float16 knows"
    assert any(torch.equal(latent, codes) for latent in ShardSet(tmp_path / "shards").read(0).latents)
    assert fit(shards_run(tmp_path, variant), tmp_path / "run") == RESULT
    pipeline = load_model(str(tmp_path / "run")).pipeline
    assert pipeline.shape == (8, 8, 1)
    sampling = SamplingConfig(steps=None)
    assert pipeline.generate(["a red square"], [0], sampling).images.shape == (1, 3, 16, 16)
    with pytest.raises(ValueError, match="'fm' needs a continuous autoencoder"):
        fit(shards_run(tmp_path, "fm"), tmp_path / "other")
    with pytest.raises(ValueError, match="needs a discrete autoencoder"):
        fit(shards_run(shards, variant), tmp_path / "third")


@pytest.mark.parametrize("variant", ["fm", "dtm-mean"])
def test_a_run_on_shards_is_sampled_by_its_encoders(variant: str, shards: Path, tmp_path: Path) -> None:
    result = fit(shards_run(shards, variant, preview_every=6), tmp_path / "run")
    assert result == RESULT
    assert list((tmp_path / "run").rglob("*.png"))
    model = load_model(str(tmp_path / "run"))
    pipeline, two = model.pipeline, SamplingConfig(steps=2)
    assert model.config.run == shards_run(shards, variant, preview_every=6)
    assert pipeline.shape == (4, 4, 16), "the most common size, in tokens of 2 x 2 x 4"
    one, other = (pipeline.generate(["a red square"], [seed], two).images for seed in (0, 1))
    assert one.shape == (1, 3, 16, 16)
    assert not torch.equal(one, other)
    assert pipeline.generate(["a red square"], [0], two, height=12, width=20).images.shape == (1, 3, 12, 20)
    sizes = {tuple(4 * side for side in grid) for grid in pipeline.grids}
    assert sizes == {tuple(2 * side for side in shard.size) for shard in ShardSet(shards / "shards").manifest.shards}
    assert all(pipeline.prompt_warnings(["a"], *size) == [] for size in sizes)
    assert "not 8 x 16" in pipeline.prompt_warnings(["a"], 8, 16)[0]


def test_an_autoencoder_that_is_gone_is_missed_with_a_way_out(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "data")
    manifest = tmp_path / "data" / "shards" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(shards / "kl"), str(tmp_path / "data" / "kl")))
    (tmp_path / "data" / "kl").rename(tmp_path / "kl")
    with pytest.raises(ValueError, match=r"no folder .*--train.preview-every 0"):
        fit(shards_run(tmp_path / "data", preview_every=6), tmp_path / "run")
    fit(shards_run(tmp_path / "data", preview_every=0), tmp_path / "run")
    with pytest.raises(ValueError, match=r"no folder .*may also be placed in .*run/autoencoder"):
        load_model(str(tmp_path / "run"))
    (tmp_path / "kl").rename(tmp_path / "run" / "autoencoder")
    load_model(str(tmp_path / "run"))


def test_stopped_and_resumed_it_ends_with_the_same_bits(shards: Path, tmp_path: Path) -> None:
    def stopped(out: Path, *stops: int) -> bytes:
        for steps in stops:
            fit(shards_run(shards, steps=steps), out)
        return (out / "model.safetensors").read_bytes()

    assert stopped(tmp_path / "whole", 6) == stopped(tmp_path / "parts", 1, 3, 6)
    losses = [(tmp_path / run / "losses.jsonl").read_text() for run in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_workers_and_accumulation_change_no_sample(shards: Path, tmp_path: Path) -> None:
    losses = []
    for name, workers, parts in (("plain", 0, 1), ("workers", 2, 1), ("parts", 0, 2)):
        fit(shards_run(shards, data={"workers": workers}, gradient_accumulation_steps=parts), tmp_path / name)
        lines = (tmp_path / name / "losses.jsonl").read_text().splitlines()
        losses.append(torch.tensor([json.loads(line)["loss"] for line in lines]))
    assert torch.equal(losses[0], losses[1])
    torch.testing.assert_close(losses[0], losses[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_encoders_of_another_precision_are_found_again(precision: str, shards: Path, tmp_path: Path) -> None:
    encoders = ["--autoencoder", str(shards / "kl"), "--text", str(shards / "text"), "--precision", precision]
    main(["prepare", str(shards / "images"), "--out", str(tmp_path / "shards"), *encoders, "--size", "16"])
    fit(shards_run(tmp_path, steps=1), tmp_path / "run")
    assert load_model(str(tmp_path / "run")).pipeline.encoder.precision == precision


def test_a_run_does_not_resume_on_other_shards(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards / "shards", tmp_path / "shards")
    fit(shards_run(tmp_path, steps=1), tmp_path / "run")
    manifest = tmp_path / "shards" / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["samples"] -= changed["shards"].pop(0)["samples"]
    manifest.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="a run on other data"):
        fit(shards_run(tmp_path, steps=2), tmp_path / "run")


def test_other_encoders_and_patches_that_do_not_divide_are_rejected(shards: Path, tmp_path: Path) -> None:
    fit(shards_run(shards, steps=1), tmp_path / "run")
    about = json.loads((tmp_path / "run" / "model.json").read_text())
    about["encoders"]["text"]["digest"] = "0" * 64
    (tmp_path / "run" / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="has other weights than the model was trained with"):
        load_model(str(tmp_path / "run"))
    with pytest.raises(ValueError, match="do not divide: set patch"):
        fit(shards_run(shards).model_copy(update={"patch": (4, 4)}), tmp_path / "patch")
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        fit(shards_run(tmp_path), tmp_path / "none")


ROOT = Path(__file__).parents[2]
SMALL = [
    "--backbone.width", "16", "--backbone.depth", "1", "--backbone.heads", "2", "--train.batch-size", "4",
    "--train.preview-every", "0",
]  # fmt: skip


def test_several_folders_are_trained_on_together(shards: Path, tmp_path: Path) -> None:
    """As one data set, if the same encoders made them."""
    again = ["--text", str(shards / "text"), "--size", "16", "--multiple", "4", "--crop", "buckets", "--chunk", "7"]
    main(["prepare", str(shards / "images"), "--autoencoder", str(shards / "kl"), *again, "--out", str(tmp_path / "b")])
    folders = (shards / "shards", tmp_path / "b")
    both = ShardSet(*folders)
    assert len(both) == 2 * len(ShardSet(folders[0]))
    assert both.read(len(both.manifest.shards) - 1).rows.tolist()
    result = fit(shards_run(shards, data={"folders": folders}, preview_every=3), tmp_path / "run")
    assert result == {**RESULT, "images": len(both)}
    data = load_model(str(tmp_path / "run")).config.run.data
    assert isinstance(data, ShardsData)
    assert data.folders == folders
    other = str(save_kl_autoencoder(tmp_path / "kl", seed=1))
    main(["prepare", str(shards / "images"), "--autoencoder", other, *again, "--out", str(tmp_path / "c")])
    with pytest.raises(ValueError, match="another autoencoder, with other weights"):
        ShardSet(folders[0], tmp_path / "c")
    with pytest.raises(ValueError, match="only once"):
        ShardSet(folders[0], shards / "text" / ".." / "shards")


def default_signals() -> None:
    """As in a new terminal: signals that the tests' parent ignores (nohup) are inherited."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("target", "number", "code"),
    [
        ("alone", signal.SIGTERM, 0),
        ("script only", signal.SIGTERM, 0),
        ("whole group", signal.SIGINT, 130),
        ("whole group", signal.SIGHUP, 0),
    ],
)
def test_an_interrupted_run_saves(target: str, number: int, code: int, shards: Path, tmp_path: Path) -> None:
    """A scheduler signals the script; Ctrl-C or a closing terminal reaches its whole process group."""
    run = ["shards-fm", "--data.folders", str(shards / "shards"), "--data.workers", "2", *SMALL]
    run += ["--out", str(tmp_path / "run")]
    begin = [sys.executable, "-m", "tmatch", "train"] if target == "alone" else [str(ROOT / "scripts" / "torchrun.sh")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PROCESSES": "2", "OMP_NUM_THREADS": "1", "PATH": path}
    process = subprocess.Popen(
        [*begin, *run], env=environment, start_new_session=True, stderr=subprocess.PIPE, preexec_fn=default_signals
    )  # fmt: skip
    losses = tmp_path / "run" / "losses.jsonl"
    try:
        for _ in range(3000):
            if process.poll() is not None or (losses.exists() and len(losses.read_bytes().splitlines()) > 5):
                break
            time.sleep(0.1)
        if process.poll() is None:
            (os.kill if target == "script only" else os.killpg)(process.pid, number)
        errors = process.communicate(timeout=300)[1].decode()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert errors.count("interrupted and saved") == 1
    newest = checkpoint.latest(tmp_path / "run")
    assert newest is not None, errors
    assert newest.name == f"step-{json.loads(losses.read_text().splitlines()[-1])['step']:08d}", "to the last step"


@pytest.mark.parametrize("how", ["to its end", "until it fails"])
def test_a_run_with_workers_ends(how: str, shards: Path, tmp_path: Path) -> None:
    """Sharded, where the reader outlives the run, or by an error: the workers must not be waited for for ever."""
    run = ["shards-fm", "--data.folders", str(shards / "shards"), "--data.workers", "1", *SMALL]
    run += ["--out", str(tmp_path / "run")]
    fail = "GeneratorTask.loss = lambda *_: 1 / 0" if how == "until it fails" else ""
    program = f"""
import sys
from tmatch.train import GeneratorTask
from tmatch.app.cli import main
{fail}
main(["train", *{run!r}, "--train.steps", "3", "--train.parallel", "fsdp", "--train.precision", "bfloat16"])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
    }  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=300)
    assert (ended.returncode == 0) == (how == "to its end"), ended.stderr.decode()


def test_two_processes_train_to_the_end(shards: Path, tmp_path: Path) -> None:
    """By the command: the first gathers the weights and writes them, and all end with 0."""
    run = ["train", "shards-fm", "--data.folders", str(shards / "shards"), *SMALL, "--train.steps", "3"]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tmatch"),
            *(*run, "--train.parallel", "fsdp", "--out", str(tmp_path / "two")),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    main([*run, "--out", str(tmp_path / "one")])
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


def test_encoders_by_a_relative_path_are_found_from_elsewhere(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shards)
    encoders = ["--autoencoder", "kl", "--text", "text"]
    main(["prepare", "images", "--out", str(tmp_path / "shards"), *encoders, "--size", "16"])
    fit(shards_run(tmp_path, steps=1), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    load_model(str(tmp_path / "run"))
