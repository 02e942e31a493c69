"""`tmatch tune`, and the presets it writes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import SMALL, assert_rejected, run, succeed

from tmatch.data.images import read_settings
from tmatch.datasets import ShapesData
from tmatch.eval import tune
from tmatch.eval.tune import Tuner
from tmatch.generation.config import SamplingConfig
from tmatch.generation.presets import Preset, Presets
from tmatch.hub import ALLOWED_FILES
from tmatch.pipeline import Pipeline
from tmatch.runs import load_model

STEPS = {"fast": 1, "balanced": 2, "best": 3}
TUNE = ["--prompts", "2", *(f"--{name}={steps}" for name, steps in STEPS.items())]


@pytest.fixture(autouse=True)
def _few_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tune, "CHOICES", {"sampler": ("restart", "ddim"), "guidance": (1.0, 4.0), "top_p": (0.5,)})
    monkeypatch.setenv("TMATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, without presets."""
    return Path(shutil.copytree(model, tmp_path / "run"))


def preset(**sampling: Any) -> Preset:  # noqa: ANN401
    settings = SamplingConfig(head_steps=1, **sampling)
    return Preset(sampling=settings, score=0.5, backbone_evaluations=1, head_evaluations=1, ms_per_image=2.0)


@pytest.fixture
def tuned(copied: Path) -> Path:
    """A copy of the run with presets of 1, 2 and 3 steps."""
    presets = {name: preset(steps=steps, guidance=1.0 + steps) for name, steps in STEPS.items()}
    found = Presets.model_validate({"metric": "captions", "prompts": 8, "presets": presets})
    (copied / "presets.json").write_text(found.model_dump_json())
    return copied


def without_timings(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    assert all(entry.pop("ms_per_image") >= 0 for entry in found["presets"].values())
    return found


def test_tune_writes_presets_within_their_budgets(copied: Path) -> None:
    before = {file.name for file in copied.iterdir()}
    printed = json.loads(succeed("tune", str(copied), *TUNE, "--json").stdout)
    assert {file.name for file in copied.iterdir()} - before == {"presets.json"}
    assert json.loads((copied / "presets.json").read_text()) == printed
    assert (printed["metric"], printed["split"], printed["prompts"]) == ("captions", "validation", 16)
    presets = load_model(str(copied)).presets
    assert presets is not None
    for name, entry in presets.presets.items():
        measured = ["evaluate", "--model", str(copied), "--prompts", "2", "--preset", name, "--json"]
        assert (
            json.loads(succeed(*measured).stdout)["backbone_evaluations"] == entry.backbone_evaluations <= STEPS[name]
        )
    table = succeed("tune", str(copied), *TUNE).stdout
    assert all(name in table for name in STEPS)


def test_settings_are_chosen_by_validation_prompts(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    prompts = ShapesData.eval_prompts

    def watched(data: ShapesData, count: int, split: Any = "test") -> object:  # noqa: ANN401
        asked.append((count, split))
        return prompts(data, count, split)

    monkeypatch.setattr(ShapesData, "eval_prompts", watched)
    succeed("tune", str(copied), *TUNE)
    assert asked[0] == (24, "validation")
    assert {split for _, split in asked} == {"validation"}, "of the reference, too"


@pytest.mark.parametrize("after", [2, 7])
def test_an_interrupted_command_resumes_to_the_same_presets(
    after: int, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, other = ["tune", str(copied), *TUNE], Path(shutil.copytree(copied, tmp_path / "other"))
    measure, seen = tune.evaluate, list[object]()

    def watched(*given: object, **options: object) -> object:
        if len(seen) == after:
            raise KeyboardInterrupt
        seen.append(given)
        return measure(*given, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tune, "evaluate", watched)
        done = run(*command)
    assert (done.returncode, "rerun the same command" in done.stderr) == (130, True)
    assert not (copied / "presets.json").exists()
    succeed(*command)
    first = (copied / "presets.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(tune, "evaluate", None)
        succeed(*command)  # everything is measured already
    assert (copied / "presets.json").read_bytes() == first
    monkeypatch.setenv("TMATCH_CACHE", str(tmp_path / "empty"))
    succeed("tune", str(other), *TUNE)
    assert without_timings(copied / "presets.json") == without_timings(other / "presets.json")


def test_measurements_of_other_weights_are_not_used(copied: Path, tmp_path: Path) -> None:
    succeed("tune", str(copied), *TUNE)
    succeed("tune", str(copied), *TUNE)
    assert len([*(tmp_path / "cache" / "tune").iterdir()]) == 1
    succeed("export", str(copied), "--out", str(tmp_path / "half"), "--dtype", "float16")
    for change in ([str(tmp_path / "half"), *TUNE], [str(copied), *TUNE, "--prompts", "3"]):
        before = len([*(tmp_path / "cache" / "tune").iterdir()])
        succeed("tune", *change)
        assert len([*(tmp_path / "cache" / "tune").iterdir()]) == before + 1


def test_models_whose_presets_could_not_be_stored_are_rejected(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ShapesData, "eval_prompts", lambda *_: None)
        assert_rejected(run("tune", str(copied), *TUNE), "has no validation prompts")
    (copied / "model.safetensors").unlink()
    assert_rejected(run("tune", str(copied), *TUNE), "not finished")
    monkeypatch.setattr("tmatch.runs.load.download", lambda name, hub: copied)
    assert_rejected(run("tune", "hf:owner/name", *TUNE), "`tmatch export hf:owner/name")


def test_generate_and_evaluate_use_a_preset_and_given_options_override_it(tuned: Path, tmp_path: Path) -> None:
    def settings(*options: str) -> tuple[Any, ...]:
        succeed("generate", "a circle", "--model", str(tuned), *options, "--out", "one.png", cwd=tmp_path)
        recorded = read_settings(tmp_path / "one.png")
        evaluated = succeed("evaluate", "--model", str(tuned), "--prompts", "2", *options, "--json")
        measured = json.loads(evaluated.stdout)
        values = tuple(recorded[key] for key in ("steps", "guidance", "head_steps"))
        assert values == tuple(measured[key] for key in ("steps", "guidance", "head_steps"))
        assert measured["backbone_evaluations"] == values[0]
        return values

    assert settings() == (2, 3.0, 1), "balanced"
    for name, steps in STEPS.items():
        assert settings("--preset", name) == (steps, 1.0 + steps, 1)
    assert settings("--preset", "best", "--guidance", "7") == (3, 7.0, 1)
    for command in (["generate", "a circle"], ["evaluate", "--prompts", "2"]):
        done = run(*command, "--model", str(tuned), "--preset", "bset", cwd=tmp_path)
        assert_rejected(done, "no preset 'bset' (did you mean 'best'?)", "fast, balanced, best", "`tmatch tune`")


def test_a_folder_is_completed_with_the_same_preset_only(tuned: Path, tmp_path: Path) -> None:
    command = ["generate", "a circle", "--model", str(tuned), "--out", "folder"]
    succeed(*command, cwd=tmp_path)
    assert "is complete already" in succeed(*command, "--preset", "balanced", cwd=tmp_path).stdout
    assert_rejected(run(*command, "--preset", "best", cwd=tmp_path), "is not empty")


def test_the_pipeline_takes_a_preset(tuned: Path, model: Path) -> None:
    pipe = Pipeline.from_pretrained(tuned)
    for name, steps in STEPS.items():
        assert pipe("a circle", preset=name).evaluations.backbone == steps
    assert pipe("a circle").evaluations.backbone == STEPS["balanced"]
    assert pipe("a circle", preset="best", num_inference_steps=5).evaluations.backbone == 5
    own = load_model(str(model)).config.run.sampling.updated(steps=3, guidance=4.0, head_steps=1)
    expected = pipe.networks.generate(["a circle"], [0], own).images
    assert torch.equal(pipe("a circle", preset="best").tensors, expected)
    with pytest.raises(ValueError, match=r"no preset 'bset' \(did you mean 'best'\?\)"):
        pipe("a circle", preset="bset")
    with pytest.raises(ValueError, match=r"no preset 'fast'.*`tmatch tune`"):
        Pipeline.from_pretrained(model)("a circle", preset="fast")


def test_presets_are_exported_and_stay_with_the_weights_they_were_chosen_for(tuned: Path, tmp_path: Path) -> None:
    succeed("export", str(tuned), "--out", str(tmp_path / "export"))
    assert {file.name for file in (tmp_path / "export").iterdir()} == {
        "model.json", "model.safetensors", "README.md", "presets.json",
    }  # fmt: skip
    assert load_model(str(tmp_path / "export")).presets == load_model(str(tuned)).presets
    assert "2 steps, 1 head steps in each and guidance 3" in (tmp_path / "export" / "README.md").read_text()
    assert any(Path("presets.json").match(pattern) for pattern in ALLOWED_FILES)
    train = ["train", "shapes-dtm", *SMALL, "--out", str(tuned), "--train.steps"]
    succeed(*train, "4")
    assert (tuned / "presets.json").exists(), "the run was finished"
    succeed(*train, "6")
    assert not (tuned / "presets.json").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2), ("split", "test"), ("prompts", 0), ("metric", None), ("code", "exit()"), ("presets", {}),
        ("presets", {"quick": {}}), ("presets.fast.sampling.steps", 10**9), ("presets.fast.sampling.solver", "hein"),
        ("presets.fast.score", float("nan")), ("presets.fast.path", "/etc"), ("presets.fast.backbone_evaluations", "4"),
    ],
)  # fmt: skip
def test_invalid_presets_are_one_sentence(key: str, value: object, tuned: Path) -> None:
    whole = part = json.loads((tuned / "presets.json").read_text())
    *outer, last = key.split(".")
    for name in outer:
        part = part[name]
    part[last] = value
    (tuned / "presets.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"presets\.json does not describe presets"):
        load_model(str(tuned))


def test_damaged_presets_are_one_sentence(tuned: Path) -> None:
    for text in ("", "[]", "[" * 100_000, '{"format": 1, "format": 1}', '{"format": 1'):
        (tuned / "presets.json").write_text(text)
        with pytest.raises(ValueError, match=r"presets\.json does not describe presets") as error:
            load_model(str(tuned))
        assert "\n" not in str(error.value)
    (tuned / "presets.json").unlink()
    (tuned / "presets.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="outside its folder"):
        load_model(str(tuned))


def test_the_tuner_restarts_from_the_models_own_settings(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from the presets of an earlier search, or a rerun would not give the same."""
    own: list[SamplingConfig] = []
    choose = Tuner.choose

    def watched(tuner: Tuner, sampling: SamplingConfig, budgets: Any) -> object:  # noqa: ANN401
        own.append(sampling)
        return choose(tuner, sampling, budgets)

    monkeypatch.setattr(Tuner, "choose", watched)
    succeed("tune", str(tuned), *TUNE)
    assert own == [load_model(str(tuned)).config.run.sampling]
