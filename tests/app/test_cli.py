"""The command line, as a user meets it."""

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
import torch
from laws import small_model
from PIL import Image

import tmatch
from tmatch.app.cli import main
from tmatch.app.draw import How
from tmatch.model import Model, TransitionMatching
from tmatch.runs.autoencoder import copy_autoencoder

CODE = [sys.executable, "-c", "from tmatch.app.cli import main; main()"]
SETTINGS = {
    "backbone.width": 16, "backbone.depth": 1, "backbone.heads": 2, "head.width": 16, "head.depth": 1, "text.width": 16,
    "text.heads": 2, "data.images": 40, "held-out": 4, "validation-images": 4, "train.batch-size": 4, "train.warmup": 0,
    "train.checkpoint-every": 2, "sampling.steps": 2, "train.cooldown": 0,
}  # fmt: skip
SMALL = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, cwd: Path | None = None) -> Done:
    """The command in this process, which saves the seconds that a new one needs to begin."""
    stdout, stderr, code = StringIO(), StringIO(), 0
    with redirect_stdout(stdout), redirect_stderr(stderr), chdir(cwd or Path.cwd()):
        try:
            main(arguments)
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
    return Done(code, stdout.getvalue(), stderr.getvalue())


def assert_refused(done: Done, *words: str) -> None:
    """A sentence, exit code 2, no traceback."""
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, small."""
    out = tmp_path_factory.mktemp("runs") / "model"
    done = run("train", "shapes-dtm", "--out", str(out), *SMALL, "--train.steps", "4")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompts"] == 4
    return out


def test_variants_lists_every_row() -> None:
    rows = json.loads(run("variants", "--json").stdout)
    assert [row["variant"] for row in rows] == list(tmatch.VARIANTS)
    columns = {"variant", "process", "Y", "kernel", "attention", "backbone", "times", "evaluations"}
    assert all(set(row) == columns for row in rows)


def test_help_names_every_command_and_recipe() -> None:
    words = run("--help").stdout
    assert all(command in words for command in ("generate", "evaluate", "train", "variants", "version"))
    assert "averaged weights" in run("train", "shapes-fm", "--help").stdout
    assert run("version").stdout.strip() == tmatch.__version__


def test_train_goes_on_and_keeps_its_configuration(model: Path) -> None:
    assert run("train", "shapes-dtm", "--out", str(model), *SMALL, "--train.steps", "6").returncode == 0
    steps = [json.loads(line)["step"] for line in (model / "losses.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert json.loads((model / "model.json").read_text())["recipe"]["backbone"]["width"] == 16


def test_no_command_is_a_call_for_help() -> None:
    assert "generate" in run().stdout


def test_what_is_in_a_folder_is_not_written_over(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metadata.jsonl").write_text("mine")
    assert_refused(run("generate", "a circle", "--model", str(model), "--out", "mine", cwd=tmp_path), "is not empty")
    assert (tmp_path / "mine" / "metadata.jsonl").read_text() == "mine"


@pytest.mark.parametrize("mine", ["result.json", "metadata.jsonl", "writing/notes.json", "writing/part/novel.txt"])
@pytest.mark.parametrize("recipe", ["shapes-dtm", "shapes-autoencoder"])
def test_nothing_of_others_is_lost_by_training(recipe: str, mine: str, tmp_path: Path) -> None:
    (file := tmp_path / "run" / mine).parent.mkdir(parents=True)
    file.write_text("mine")
    what = "/".join(mine.split("/")[:2])
    assert_refused(run("train", recipe, "--out", "run", cwd=tmp_path), f"run holds {what}, and no run that could go on")
    assert [found for found in (tmp_path / "run").rglob("*") if found.is_file()] == [file]
    assert_refused(run("train", recipe, "--out", f"run/{mine}", cwd=tmp_path), "is a file; give a folder")


def test_an_autoencoder_that_lies_where_its_copy_would_be_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "autoencoder").mkdir()
    for name in ("recipe.json", "autoencoder.safetensors", "losses.jsonl"):
        (tmp_path / "autoencoder" / name).write_text("mine")
    with pytest.raises(ValueError, match="something else is there; give another folder for the run"):
        copy_autoencoder(str(tmp_path / "autoencoder"), tmp_path)
    assert len(list((tmp_path / "autoencoder").iterdir())) == 3


def test_a_run_begins_beside_its_log_and_goes_on_after_a_first_checkpoint_that_was_cut(tmp_path: Path) -> None:
    (tmp_path / "writing").mkdir()
    (tmp_path / "writing" / "ema.safetensors").write_text("half of a checkpoint")
    for name in ("losses.jsonl", "log.txt"):
        (tmp_path / name).write_text("")
    done = run("train", "shapes-dtm", "--out", str(tmp_path), *SMALL, "--train.steps", "2")
    assert done.returncode == 0, done.stderr


def test_a_yaml_file_overrides_the_recipe_and_options_override_the_file(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "train: {steps: 2, batch: 4, learning_rate: 2e-4}\nwidth: 8\ndata:\n  images: 30\nheld_out: 2\n"
    )
    out = tmp_path / "run"
    done = run(
        "train", "shapes-autoencoder", "--config", "my.yaml", "--out", str(out), "--data.images", "20", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    settings = json.loads((out / "recipe.json").read_text())
    assert (settings["width"], settings["train"]["steps"], settings["data"]["images"]) == (8, 2, 20)
    assert settings["train"]["learning_rate"] == 2e-4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {step: 2}", "did you mean 'train.steps'?"),
        ("widht: 2", "did you mean 'width'?"),
        ("width: wide", "width: Input should be a valid integer"),
        ("train: 3", "train: Input should be"),
        ("train: {steps: true}", "train.steps: Input should be a valid integer, got True"),
        ("train: {seed: 2001-01-01}", "no setting"),
        ("[1, 2]", "holds no settings"),
        ("a: [", "is not YAML"),
        ("width: 8\ntrain: {steps: 2}\nwidth: 16", "my.yaml sets 'width' twice, again in line 3; leave one of them."),
        ("train:\n  steps: 2\n  steps: 3", "sets 'steps' twice, again in line 3"),
    ],
)
def test_bad_yaml_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(text)
    done = run("train", "shapes-autoencoder", "--config", "my.yaml", "--out", "run", cwd=tmp_path)
    assert_refused(done, words)
    assert not (tmp_path / "run").exists()


def test_what_only_begins_like_a_number_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("autoencoder: 2e5-run\ntrain: {learning_rate: .5e-3}")
    done = run("train", "shapes-fm", "--config", "my.yaml", "--out", "run", cwd=tmp_path)
    assert_refused(done, "2e5-run has no recipe.json")
    (tmp_path / "my.yaml").write_text("recipe: {train: {steps: 2}}\ntrain: {steps: 5}")
    done = run("train", "shapes-fm", "--config", "my.yaml", "--out", "run", cwd=tmp_path)
    assert_refused(done, "sets 'recipe', which is no setting")


def test_the_settings_of_a_run_serve_for_another(model: Path, tmp_path: Path) -> None:
    config = ["--config", str(model / "model.json"), "--train.steps", "1"]
    done = run("train", "shapes-dtm", "--out", "run", *config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((folder / "model.json").read_text())["recipe"] for folder in (model, tmp_path / "run"))
    assert other == {**one, "train": {**one["train"], "steps": 1}}


def test_a_config_counts_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("train: {stesp: 2}")
    (tmp_path / "fine.yaml").write_text("train: {steps: 2}")
    for order in (["--config", "my.yaml", "--out", "x", "shapes-fm"], ["shapes-fm", "--out", "x", "--config=my.yaml"]):
        assert_refused(run("train", *order, cwd=tmp_path), "did you mean 'train.steps'?")
    twice = ["--config", "fine.yaml", "--config", "my.yaml"]
    assert_refused(run("train", "shapes-fm", "--out", "x", *twice, cwd=tmp_path), "did you mean 'train.steps'?")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["train", "shapes-autoencodr", "--out", "x"],
            ["no recipe 'shapes-autoencodr' (did you mean 'shapes-autoencoder'?)"],
        ),
        (["train", "shapes-dtm", "--out", "x", "--sampling.guidance", "nan"], ["sampling.guidance: ", "finite number"]),
        (
            ["train", "shapes-dtm", "--out", "x", "--train.learning-rate", "inf"],
            ["train.learning_rate: ", "finite number"],
        ),
        (["train", "shapes-dtm", "--out", "x", "--backbone.width", "130"], ["130"]),
        (["train", "shapes-dtm", "--out", "x", "--train.step", "5"], ["--train.steps"]),
        (["train", "shapes-dtm", "--out", "x", "--train.steps", "five"], ["five"]),
        (
            ["train", "shapes-dtm", "--out", "x", "--train.steps", "0"],
            ["train.steps: ", "greater than 0, got 0"],
        ),
        (["train", "shapes-dtm", "--out", "x", "--backbone.width", "0"], ["tmatch: backbone.width: "]),
        (["train", "shapes-dtm", "--out", "x", "--data.images", "0"], ["tmatch: data.images: "]),
        (["train", "shapes-dtm", "--out", "x", "--variant", "dmt"], ["no variant 'dmt'", "'dtm'"]),
        (["train", "shapes-dtm", "--out", "x", "--autoencoder", "nowhere"], ["nowhere has no recipe.json"]),
        (["train", "shapes-dtm", "--out", "/proc/nowhere/run", *SMALL], ["/proc/nowhere"]),
        (["train", "shapes-dtm"], ["--out"]),
        (["train", "shapes-dtm", "--out", "x", "--config", "none.yaml"], ["no file none.yaml"]),
        (["train", "folder-dtm", "--out", "x", "--data.folder", "nowhere"], ["There is no folder nowhere"]),
        (
            [
                "train",
                "shapes-dtm",
                "--out",
                "x",
                *SMALL,
                "--train.steps",
                "2",
                "--train.gradient-accumulation-steps",
                "3",
            ],
            ["3 parts"],
        ),
        (["varants"], ["no command 'varants' (did you mean 'variants'?)"]),
        (["generate", "a circle", "--out", "x.jpg"], ["written as PNG; call it x.png"]),
        (["generate"], ["Give a prompt"]),
        (["generate", ""], ["A prompt is empty"]),
        (["generate", "a \udcff circle"], ["has half of a letter; is it written in UTF-8?"]),
        (["generate", "a circle", "--negative", "\udcff"], ["has half of a letter"]),
        (["generate", "a circle", "--model", "owner/name"], ["no model 'owner/name'", "hf:owner/name of the hub"]),
        (["train", "shapes-dtm", "--out", "x", "--patch", "0", "1"], ["patch.0: ", "greater than 0, got 0"]),
        (
            ["train", "shapes-dtm", "--out", "x", "--head.patch", "-1", "1"],
            ["head.patch.0: ", "greater than 0, got -1"],
        ),
        (["generate", "a circle", "--model", "nowhere"], ["no model 'nowhere'"]),
        (["generate", "a circle", "--prompt-file", "none.txt"], ["no file none.txt"]),
        (["generate", "a circle", "--step", "5"], ["--steps"]),
        (["generate", "a circle", "--out", "/proc/nowhere/x.png"], ["/proc/nowhere"]),
        (["generate", "a circle", "--images", "0"], ["from 1 up; got 0"]),
        (["evaluate", "--model", "nowhere"], ["no model 'nowhere'"]),
        (["evaluate", "--prompts", "0"], ["from 1 up; got 0"]),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, list) else None,
)
def test_bad_requests_are_refused(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    assert_refused(run(*arguments, cwd=tmp_path), *words)


def test_generate_draws_one_image_many_or_a_folder_of_them(model: Path, tmp_path: Path) -> None:
    done = run("generate", "a red circle", "--model", str(model), "--out", "new/one.png", "--seed", "7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "seed 7  a red circle" in done.stdout
    assert "2 backbone and 8 head evaluations" in done.stdout
    assert Image.open(tmp_path / "new" / "one.png").size == (256, 256)
    (tmp_path / "prompts.txt").write_text("a blue cross\n\ntwo circles\n")
    many = [
        "--prompt-file",
        "prompts.txt",
        "--images",
        "2",
        "--model",
        str(model),
        "--head-steps",
        "1",
        "--guidance",
        "3",
    ]
    assert run("generate", *many, "--out", "folder", cwd=tmp_path).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "folder" / "metadata.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["a blue cross"] * 2 + ["two circles"] * 2
    alone = ["two circles", "--seed", "3", *many[4:]]
    assert run("generate", *alone, "--out", "alone", cwd=tmp_path).returncode == 0
    one, other = (Image.open(tmp_path / name / "000003.png").tobytes() for name in ("folder", "alone"))
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 1, "a seed is an image, whatever the batch"


def test_unknown_words_are_drawn_with_a_warning(model: Path, tmp_path: Path) -> None:
    done = run("generate", "a golden circle and a dragon", "--model", str(model), cwd=tmp_path)
    assert done.returncode == 0
    assert "does not know 'dragon', 'golden'" in done.stderr
    assert "purple" in done.stderr
    assert (tmp_path / "out.png").exists()


FULL_ATTENTION = How(
    head_steps=2, iterations=2, order="raster", confidence_temperature=1.0, temperature=1.0, top_k=2, top_p=0.5, steps=2
)


@pytest.mark.parametrize(
    ("row", "lacks"),
    [
        ("fm", {"head", "masks", "codes"}), ("dtm", {"masks", "codes"}), ("fhtm-2", {"masks", "codes"}),
        ("mar", {"codes"}), ("ar-discrete", {"head", "masks"}), ("mar-discrete", {"head"}),
    ],
)  # fmt: skip
def test_options_that_change_nothing_are_named(row: str, lacks: set[str]) -> None:
    kernel, options = small_model(row).kernel, {"head": 2, "masks": 3, "codes": 3}
    prompt_warnings = FULL_ATTENTION.prompt_warnings(kernel, solver="heun")
    assert {remark.split("no ")[1].split(",")[0] for remark in prompt_warnings} == lacks
    assert len(prompt_warnings) == sum(options[part] for part in lacks)
    assert How(steps=4, guidance=2.0).prompt_warnings(kernel) == []


def test_they_are_named_on_the_way(tmp_path: Path) -> None:
    for words in (["generate", "a red circle", "--solver", "heun"], ["evaluate", "--prompts", "2"]):
        done = run(*words, "--model", "shapes-fm", "--steps", "1", "--head-steps", "2", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "the model has no head, so --head-steps changes nothing." in done.stderr
        assert ("--solver changes nothing" in done.stderr) == ("--solver" in words)


def test_what_is_refused_is_not_remarked_on(model: Path, tmp_path: Path) -> None:
    for words in (["generate", "a circle"], ["evaluate", "--prompts", "2"]):
        done = run(*words, "--model", str(model), "--top-k", "0", cwd=tmp_path)
        assert_refused(done, "got 0")
        assert "changes nothing" not in done.stderr


def test_a_image_of_another_size_is_drawn_and_not_judged(model: Path, tmp_path: Path) -> None:
    done = run("generate", "a red circle", "--model", str(model), "--width", "48", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "as asked" not in done.stdout
    assert "the model never saw images 32 high and 48 wide, but 32 x 32." in done.stderr
    assert Image.open(tmp_path / "out.png").size == (240, 160)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "The number of steps is a whole number from 1 up; got 0"),
        (["--head-steps", "0"], "from 1 up; got 0"),
        (["--guidance", "nan"], "guidance scale is a finite number"),
        (["--height", "30"], "30 high and 32 wide"),
        (["--prompt-file", "empty.txt"], "has no prompts"),
        (["--guidance", "much"], "much"),
        (["--precision", "float16"], "float16"),
        (["--out", "folder.png"], "is a folder"),
    ],
)
def test_bad_ways_to_draw_are_refused(arguments: list[str], words: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "folder.png").mkdir()
    assert_refused(run("generate", "a circle", "--model", str(model), *arguments, cwd=tmp_path), words)
    assert not (tmp_path / "out.png").exists()


def test_evaluate_measures(model: Path) -> None:
    done = run("evaluate", "--model", str(model), "--prompts", "12", "--json", "--steps", "1")
    result = json.loads(done.stdout)
    assert (result["prompts"], result["steps"], result["backbone_evaluations"]) == (12, 1, 1)
    assert "95% interval" in run("evaluate", "--model", str(model), "--prompts", "12").stdout


def test_the_precision_reaches_the_sampler(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool | str] = []

    def watched(network: Model, *given: object) -> object:
        seen.append(torch.is_autocast_enabled("cpu") or torch.get_float32_matmul_precision())
        return sample(network, *given)

    sample = TransitionMatching.sample
    monkeypatch.setattr(TransitionMatching, "sample", watched)
    for words in (["generate", "a red circle"], ["evaluate", "--prompts", "2", "--json"]):
        for how in ([], ["--precision", "bfloat16"], ["--precision", "tf32"]):
            done = run(*words, "--model", str(model), "--steps", "1", *how, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert words[0] == "generate" or json.loads(done.stdout)["precision"] == (how or ["float32"])[-1]
    assert seen == ["highest", True, "high"] * 2


@pytest.mark.parametrize(("command", "then"), [("prepare", "goes on"), ("evaluate", "starts again")])
def test_ctrl_c_says_what_the_same_command_does(command: str, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tmatch.app.cli._parsed", interrupted)
    done = run(command, "images")
    assert done.returncode == 130
    assert done.stderr == f"tmatch: interrupted; nothing saved is lost, and the same command {then}.\n"


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [*CODE, "train", "shapes-dtm", "--out", str(tmp_path), *SMALL, "--train.steps", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.glob("step-*")):  # a certain one may be gone again
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saved; the same command goes on" in said
    assert "Traceback" not in said
    last = len((tmp_path / "losses.jsonl").read_text().splitlines())
    assert (tmp_path / f"step-{last:08d}" / "record.json").exists(), "the last step is in the checkpoint"


@pytest.mark.parametrize("limit", [200, 8192])
def test_a_full_disk_loses_nothing(limit: int, tmp_path: Path) -> None:
    """Files that may not grow stand for a disk that is full; what was saved before stays."""
    first = run("train", "shapes-dtm", "--out", str(tmp_path), *SMALL, "--train.steps", "2")
    assert first.returncode == 0, first.stderr
    done = subprocess.run(
        [*CODE, "train", "shapes-dtm", "--out", str(tmp_path), *SMALL, "--train.steps", "4"],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert json.loads((tmp_path / "model.json").read_text())["shape"] == [4, 4, 16]
    assert_refused(Done(done.returncode, "", done.stderr), "could not be written", "the same command goes on")
    assert run("train", "shapes-dtm", "--out", str(tmp_path), *SMALL, "--train.steps", "4").returncode == 0


def test_a_damaged_and_a_foreign_checkpoint_are_refused(tmp_path: Path) -> None:
    command = ["train", "shapes-dtm", "--out", str(tmp_path), *SMALL, "--train.steps"]
    assert run(*command, "2").returncode == 0
    assert_refused(run(*command, "4", "--backbone.depth", "2"), "another backbone.depth", "new folder")
    weights = tmp_path / "step-00000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert_refused(run(*command, "4"), "is damaged")


def test_the_first_command_needs_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*CODE, "generate", "a red circle"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.png").exists()


def test_the_path_to_images_is_written_as_a_strip_and_an_animation(model: Path, tmp_path: Path) -> None:
    from PIL import Image

    done = run("generate", "a circle", "a square", "--model", str(model), "--path", "--out", "new.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"new.png", "new-path.png", "new-path.gif"}
    with Image.open(tmp_path / "new-path.gif") as animation, Image.open(tmp_path / "new-path.png") as strip:
        assert animation.n_frames == 2, "an estimate, and the image"
        assert strip.size == (268, 268), "a row an image, two moments of each"
    done = run("generate", "a circle", "--model", str(model), "--path", "--out", "folder", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in (tmp_path / "folder").iterdir()} == {".png", ".gif", ".jsonl"}


def test_a_plan_needs_neither_data_nor_memory() -> None:
    settings = ("dtm-s", "--gpus", "2", "--device", "rtx 4090", "--expected.text-width", "64", "--backbone.depth", "1")
    plan = json.loads(run("plan", *settings, "--json").stdout)
    assert (plan["gpus"], plan["device"], plan["tokens_an_image"]) == (2, "RTX 4090", 256)
    times = plan["drawing"]["at_least_seconds_by_steps"]
    assert times["32"]["4"] == pytest.approx(plan["drawing"]["at_least_seconds"])
    assert "GPU-hours" in run("plan", *settings).stdout
    assert_refused(run("plan", "dtm-ss"), "There is no recipe 'dtm-ss'", "did you mean 'dtm-s'")
    assert_refused(run("plan", "dtm-s", "--gpus", "3"), "does not divide among 3 GPUs", "--train.batch-size")
    assert_refused(run("plan", "dtm-s", "--gpus", "0"), "number of GPUs")
    assert_refused(run("plan", "dtm-s", "--device", "abacus"), "There is no device 'abacus'")
    assert_refused(run("plan", "dtm-s", "--utilisation.training", "2"), "share of the peak")
    assert_refused(run("plan", "shapes-autoencoder"), "Only generators are planned")
