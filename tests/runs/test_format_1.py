"""Runs and data shards of earlier versions resume and load: format 1, and format 2 with earlier keys of sampling."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tmatch.app.overrides import with_file
from tmatch.migrate import migrate_sampling, migrate_settings, migrate_weight_name
from tmatch.recipes import RECIPES
from tmatch.runs import fit
from tmatch.runs.load import read_config, read_model
from tmatch.train import checkpoint
from tmatch.train.resume import require_resumable

sys.path.insert(0, str(Path(__file__).parents[1]))
from goldens import weight_norms

OLD = Path(__file__).parents[1] / "format_1"


@pytest.mark.parametrize("name", ["run-shapes", "run-shards"])
def test_a_run_resumes_to_the_weights_of_its_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps, then two more; the averaged weights are those that the version before ends with."""
    shutil.copytree(OLD / name, out := tmp_path / name)
    shutil.copytree(OLD / "shards", tmp_path / "shards")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    config = read_config(str(out))[1].run
    changes = {"steps": 4, "preview_every": 0}
    fit(config.model_copy(update={"train": config.train.model_copy(update=changes)}), out)
    newest = checkpoint.latest(out)
    assert newest == out / "step-00000004"
    assert checkpoint.record(newest)["format"] == 2
    expected = load_file(OLD / "expected.safetensors")[name]
    torch.testing.assert_close(weight_norms(load_file(out / "model.safetensors")), expected, rtol=0, atol=1e-5)


def test_other_settings_do_not_resume(tmp_path: Path) -> None:
    shutil.copytree(OLD / "run-shapes", out := tmp_path / "run")
    config = read_config(str(out))[1].run
    for key, value in {"max_grad_norm": 2.0, "ema_decay": 0.5, "batch_size": 8}.items():
        changed = config.model_copy(update={"train": config.train.model_copy(update={"steps": 4, key: value})})
        with pytest.raises(ValueError, match=f"another train.{key}"):
            fit(changed, out)


def test_weights_load_under_their_current_names() -> None:
    _, _, weights = read_model(str(OLD / "run-shapes"))
    assert any(name.startswith("model.kernel.distribution.head.") for name in weights)
    assert not any(".law." in name for name in weights)


def test_migration_leaves_the_current_format_as_it_is() -> None:
    old = checkpoint.record(OLD / "run-shapes" / "step-00000002")["settings"]
    assert old["train"]["batch_size"] == 4
    assert old["train"]["parallel"] == "ddp"
    assert old["text"]["max_length"] == 16
    assert (old["caption_dropout"], old["init"]["model"]) == (0.1, None)
    assert migrate_settings(old) == old
    name = "exp_avg.model.kernel.distribution.head.out.bias"
    assert migrate_weight_name(name) == name == migrate_weight_name("exp_avg.model.kernel.law.head.out.bias")


def with_old_schedule(file: Path, section: str) -> None:
    """Rename the key of the guidance schedule in a JSON file to its earlier name."""
    content = json.loads(file.read_text())
    sampling = content[section]["sampling"]
    sampling.pop("guidance_schedule", None)
    sampling["schedule"] = "falling"
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("written", ["format 1", "format 2"])
def test_a_run_keeps_its_guidance_schedule_under_its_current_name(written: str, tmp_path: Path) -> None:
    """In the model, in its checkpoint, and as a file of settings; the run resumes."""
    shutil.copytree(OLD / "run-shapes", out := tmp_path / "run")
    if written == "format 2":
        config = read_config(str(out))[1]
        (out / "model.json").write_text(config.model_dump_json())
        record = json.loads((out / "step-00000002" / "record.json").read_text())
        settings = migrate_settings(record["settings"])
        (out / "step-00000002" / "record.json").write_text(json.dumps({**record, "format": 2, "settings": settings}))
    with_old_schedule(out / "model.json", "run" if written == "format 2" else "recipe")
    with_old_schedule(out / "step-00000002" / "record.json", "settings")
    run = read_config(str(out))[1].run
    assert run.sampling.guidance_schedule == "falling"
    saved = checkpoint.record(out / "step-00000002")["settings"]["sampling"]
    assert (saved["guidance_schedule"], "schedule" in saved) == ("falling", False)
    require_resumable(out, run)
    if written == "format 2":
        assert with_file(RECIPES["shapes-dtm"](), out / "model.json").sampling.guidance_schedule == "falling"
    settings = run.model_dump(mode="json")
    assert migrate_sampling(settings) == settings
