"""`tmatch generate` and `tmatch evaluate`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import assert_rejected, run, succeed
from laws import small_model
from PIL import Image

from tmatch.app import images_out
from tmatch.data.images import read_settings
from tmatch.datasets.base import Split
from tmatch.datasets.shapes import shapes_split
from tmatch.eval import METRICS
from tmatch.generation.config import PARTS, SamplingConfig, require_applicable
from tmatch.model import Model, TransitionMatching


def test_generate_writes_one_image_a_labelled_sheet_or_a_folder(model: Path, tmp_path: Path) -> None:
    own = ["--model", str(model), "--head-steps", "1", "--guidance", "3"]
    done = succeed("generate", "a red circle", *own, "--out", "new/one.png", "--seed", "7", cwd=tmp_path)
    assert "seed 7  a red circle" in done.stdout
    assert "2 backbone and 2 head evaluations" in done.stdout
    assert Image.open(tmp_path / "new" / "one.png").size == (256, 256)
    (tmp_path / "prompts.txt").write_text("a blue cross\n\ntwo circles\n")
    many = ["--prompt-file", "prompts.txt", "--images", "3", *own]
    succeed("generate", *many, "--out", "sheet.png", cwd=tmp_path)
    with Image.open(tmp_path / "sheet.png") as sheet:
        width, height = sheet.size
        labels = sheet.crop((0, 0, width - 3 * 128 - 16, height)).convert("L")
    assert (width > 3 * 128 + 100, 256 <= height < 300) == (True, True), "a label, and two rows of three images"
    assert all(labels.crop((0, top, labels.width, top + 128)).getextrema()[0] < 128 for top in (0, 136)), "text"
    succeed("generate", *many, "--out", "folder", cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "folder" / "metadata.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["a blue cross"] * 3 + ["two circles"] * 3
    succeed("generate", "two circles", "--seed", "4", *own, "--out", "alone", cwd=tmp_path)
    one, other = (Image.open(tmp_path / name / "000004.png").tobytes() for name in ("folder", "alone"))
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 1, "an image depends on its seed, not its batch"
    assert read_settings(tmp_path / "folder" / "000004.png").items() >= {
        "prompt": "two circles", "seed": 4, "guidance": 3.0, "head_steps": 1, "model": model.name,
    }.items()  # fmt: skip
    assert read_settings(tmp_path / "sheet.png")["prompts"] == ["a blue cross", "two circles"]


def interrupted(write: Callable[..., None], after: int) -> Callable[..., None]:
    """`write`, until it is interrupted."""
    calls = iter(range(after))

    def limited(*given: object, **options: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        write(*given, **options)

    return limited


def test_an_interrupted_folder_is_completed_by_the_same_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["generate", "a red circle", "two circles", "--images", "3", "--model", str(model), "--batch-size", "4"]
    succeed(*command, "--out", str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(images_out, "save_image", interrupted(images_out.save_image, after=2))
        done = run(*command, "--out", str(tmp_path / "k"))
    assert (done.returncode, "rerun the same command" in done.stderr) == (130, True)
    assert {file.name for file in (tmp_path / "k").iterdir()} == {"000000.png", "000001.png"}
    (tmp_path / "k" / ".000002.png.writing").write_bytes(b"of a killed process")
    for _ in range(2):  # a complete folder stays as it is
        succeed(*command, "--out", str(tmp_path / "k"))
        whole, resumed = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("whole", "k"))
        assert whole == resumed


@pytest.mark.parametrize(
    "change", [["--guidance", "3"], ["--images", "1"], ["--seed", "1"], ["--negative", "a cross"], ["--steps", "1"]]
)
def test_a_folder_with_other_images_is_not_touched(change: list[str], model: Path, tmp_path: Path) -> None:
    command = ["generate", "a circle", "--images", "2", "--model", str(model), "--out", "k"]
    succeed(*command, cwd=tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / "k").iterdir()}
    assert_rejected(run(*command, *change, cwd=tmp_path), "is not empty")
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "k").iterdir()}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "metadata.jsonl").write_text("mine")
    assert_rejected(run(*command[:-1], "own", cwd=tmp_path), "is not empty")


def test_a_sheet_is_written_after_every_batch(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["generate", "a circle", "--images", "2", "--batch-size", "1", "--model", str(model)]
    succeed(*command, "--out", str(tmp_path / "whole.png"))
    monkeypatch.setattr(images_out, "write_png", interrupted(images_out.write_png, after=1))
    assert run(*command, "--out", str(tmp_path / "part.png")).returncode == 130
    with Image.open(tmp_path / "whole.png") as whole, Image.open(tmp_path / "part.png") as part:
        half = (0, 0, whole.width - 128 - 8, whole.height)
        assert whole.crop(half).tobytes() == part.crop(half).tobytes()
        assert whole.tobytes() != part.tobytes()


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_sample_that_diverges_is_an_error(
    value: float, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = TransitionMatching.sample
    monkeypatch.setattr(TransitionMatching, "sample", lambda *given, **options: sample(*given, **options) + value)
    assert_rejected(run("generate", "a circle", "--model", str(model), cwd=tmp_path), "diverged")
    assert not list(tmp_path.iterdir())


def test_images_of_shapes_are_checked_at_the_trained_size(model: Path, tmp_path: Path) -> None:
    done = succeed("generate", "a red circle", "a golden dragon", cwd=tmp_path)
    assert done.stdout.splitlines()[0].endswith("  [ok]")
    assert done.stdout.splitlines()[1].endswith("  a golden dragon"), "no caption of shapes, so there is no verdict"
    assert "'dragon', 'golden'" in done.stderr
    done = succeed("generate", "a red circle", "--model", str(model), "--width", "48", cwd=tmp_path)
    assert "[" not in done.stdout
    assert "32 x 32" in done.stderr, "the trained size"
    assert Image.open(tmp_path / "out.png").size == (240, 160)


def test_the_path_is_written_as_a_strip_and_an_animation(model: Path, tmp_path: Path) -> None:
    succeed("generate", "a circle", "a square", "--model", str(model), "--path", "--out", "new.png", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new.png", "new-path.png", "new-path.gif"}
    with Image.open(tmp_path / "new-path.gif") as animation, Image.open(tmp_path / "new-path.png") as strip:
        assert animation.n_frames == 2, "an estimate, and the image"
        assert strip.size == (268, 268), "one row per image, two frames each"
    succeed("generate", "a circle", "--model", str(model), "--path", "--out", "folder", cwd=tmp_path)
    assert {path.suffix for path in (tmp_path / "folder").iterdir()} == {".png", ".gif", ".jsonl"}


@pytest.mark.parametrize(
    ("variant", "parts"),
    [
        ("fm", {"continuous"}), ("dtm", {"continuous", "head"}), ("fhtm-2", {"continuous", "head"}),
        ("mar", {"continuous", "head", "masks"}), ("ar-discrete", {"codes"}), ("mar-discrete", {"masks", "codes"}),
    ],
)  # fmt: skip
def test_options_apply_to_models_that_have_the_part_they_need(variant: str, parts: set[str]) -> None:
    kernel = small_model(variant).kernel
    for name, field in SamplingConfig.model_fields.items():
        assert isinstance(field.json_schema_extra, dict)
        need = field.json_schema_extra["needs"]
        assert need is None or need in PARTS
        if need is None or need in parts:
            require_applicable(kernel, SamplingConfig(), [name])
        else:
            with pytest.raises(ValueError, match=f"^{name} has no effect on this model"):
                require_applicable(kernel, SamplingConfig(), [name])


def test_head_steps_fall_over_tokens_only_where_tokens_are_sampled_in_turn() -> None:
    falling = SamplingConfig(last_head_steps=2)
    for name, in_turn in {"dtm": False, "dtm-mean": False, "artm-3": True, "fhtm-3": True, "mar": True}.items():
        kernel = small_model(name).kernel
        require_applicable(kernel, falling.updated(head_schedule="time"), ["last_head_steps", "head_schedule"])
        require_applicable(kernel, falling, ["guidance"])
        for option in ("last_head_steps", "head_schedule"):
            if in_turn:
                require_applicable(kernel, falling, [option])
            else:
                with pytest.raises(ValueError, match="set head_schedule to time"):
                    require_applicable(kernel, falling, [option])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--solver", "heun", "--model", "shapes-fm"], "--solver has no effect on this model (no head)"),
        (["--top-k", "3"], "--top-k has no effect on this model (no codes)"),
        (["--top-k", "0"], "--top-k: Input should be greater than 0, got 0"),
        (["--guidance", "nan"], "--guidance: Input should be a finite number"),
        (["--solver", "hein"], "did you mean 'heun'?"),
        (["--guidance-schedule", "risin"], "There is no guidance schedule 'risin' (did you mean 'rising'?)"),
        (["--guidance-interval", "0.7", "0.3"], "--guidance-interval: The guidance interval must satisfy 0 <= low"),
        (["--guidance-rescale", "1.5"], "--guidance-rescale: Input should be less than or equal to 1, got 1.5"),
        (["--last-head-steps", "2"], "--last-head-steps has no effect on this model, which samples all tokens at once"),
    ],
)
@pytest.mark.parametrize("command", [("generate", "a circle"), ("evaluate", "--prompts", "2")], ids=lambda c: c[0])
def test_invalid_sampling_options_are_rejected(
    command: tuple[str, ...], arguments: list[str], words: str, model: Path, tmp_path: Path
) -> None:
    assert_rejected(run(*command, "--model", str(model), *arguments, cwd=tmp_path), words)
    assert not list(tmp_path.iterdir())


def test_evaluate_measures(model: Path) -> None:
    options = ["evaluate", "--model", str(model), "--prompts", "12"]
    result = json.loads(succeed(*options, "--json", "--steps", "1", "--solver", "heun", "--head-steps", "2").stdout)
    assert (result["prompts"], result["steps"], result["backbone_evaluations"]) == (12, 1, 1)
    assert (result["solver"], result["head_evaluations"]) == ("heun", 4)
    assert "captions satisfied" in succeed(*options).stdout


def test_evaluate_compares_with_real_images(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those of the same split, of which there are more than prompts."""
    monkeypatch.setattr("tmatch.datasets.base.REFERENCE_IMAGES", 60)
    monkeypatch.setitem(METRICS, "real", lambda images, prompts, real, codec: {"real": real.fingerprint()})
    options = ["evaluate", "--model", str(model), "--prompts", "2", "--metrics", "frechet", "energy", "real"]
    splits: tuple[Split, ...] = ("test", "withheld")
    for split in splits:
        result = json.loads(succeed(*options, "--split", split, "--json").stdout)
        assert result["real"] == shapes_split(60, split).fingerprint()
        assert min(result["frechet_distance"], result["energy_distance"]) > 0
    assert "frechet distance" in succeed(*options).stdout


def test_the_precision_reaches_the_sampler(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool | str] = []

    def watched(network: Model, *given: object, **options: object) -> object:
        seen.append(torch.is_autocast_enabled("cpu") or torch.get_float32_matmul_precision())
        return sample(network, *given, **options)

    sample = TransitionMatching.sample
    monkeypatch.setattr(TransitionMatching, "sample", watched)
    for command in (["generate", "a red circle"], ["evaluate", "--prompts", "2", "--json"]):
        for precision in ("float32", "bfloat16", "tf32"):
            succeed(*command, "--model", str(model), "--steps", "1", "--precision", precision, cwd=tmp_path)
    assert seen == ["highest", True, "high"] * 2
