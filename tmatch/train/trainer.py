"""The training loop."""

import copy
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from tmatch.data import InMemory
from tmatch.train import checkpoint
from tmatch.train.interrupt import interruptions
from tmatch.train.losses import LossLog


class TrainConfig(BaseModel):
    """How to descend; every figure has its place here, and no other key is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(gt=0)
    batch: int = Field(default=128, gt=0)
    accumulate: int = Field(default=1, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=100, ge=0)
    cooldown: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = Field(default=1.0, gt=0)
    ema: float = Field(default=0.999, ge=0, lt=1)
    checkpoint_every: int = Field(default=500, gt=0)
    seed: int = 0

    def rate(self, step: int) -> float:
        """Warm-up, then constant, then down to zero over the last `cooldown` share of the steps."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (self.steps - step) / (self.cooldown * self.steps)) if self.cooldown else 1.0
        return self.learning_rate * rise * fall

    def ema_decay(self, step: int) -> float:
        """Short at first, so that early previews show the model and not its initial weights."""
        return min(self.ema, (1 + step) / (10 + step))


class Task(nn.Module, ABC):
    """What is trained: networks, and a loss that depends on them, the seed, the step and nothing else."""

    data: InMemory

    @abstractmethod
    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        """The mean loss over one of `parts` equal parts of the batch of `size` samples at a step."""

    def shared(self) -> dict[int, Any]:
        """What a copy of the task, with averaged weights, has in common with it: the data."""
        return {id(self.data): self.data}


class Trainer:
    """AdamW with an average of the weights; the same call goes on where the last one stopped.

    A run is a function of the configuration: killed at any moment and started again, it ends with the same bits.
    """

    def __init__(self, task: Task, config: TrainConfig, out: Path, about: BaseModel | None = None) -> None:
        """`about` is all that was set for the run; it is saved, and the run is not continued with other settings."""
        if config.batch % config.accumulate:
            raise ValueError(f"A batch of {config.batch} does not divide into {config.accumulate} parts.")
        self.task = task
        self.config = config
        self.out = out
        self.settings = (about or config).model_dump(mode="json")
        self.ema = copy.deepcopy(task, task.shared()).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            task.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
        self.step = 0
        self.log = LossLog(out / "losses.jsonl")

    def run(self, until: int | None = None, progress: bool = False) -> bool:
        """Train to the end, or `until` a step, from the last checkpoint if there is one; whether it got there.

        Interrupted (Ctrl-C, SIGTERM), it finishes its step, saves, and leaves the rest to the next call.
        """
        self.resume()
        last = self.config.steps if until is None else min(until, self.config.steps)
        columns = (TextColumn("loss {task.fields[loss]:.4f}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, disable=not progress) as bar, interruptions() as interrupted:
            shown = bar.add_task("training", total=self.config.steps, completed=self.step, loss=float("nan"))
            while self.step < last and not interrupted:
                loss = self.update()
                self.log.append(self.step, loss)
                bar.update(shown, completed=self.step, loss=loss)
                if self.step % self.config.checkpoint_every == 0 or self.step == last:
                    self.save()
            if self.step < last:
                self.save()
        return self.step == last

    def update(self) -> float:
        """One step of the optimizer; its loss."""
        parts, total = self.config.accumulate, 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.step)
        for part in range(parts):
            loss = self.task.loss(self.step, self.config.batch, part, parts) / parts
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.task.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        fresh = 1 - self.config.ema_decay(self.step)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema.parameters()), list(self.task.parameters()), fresh)
        self.step += 1
        return total

    def save(self) -> Path:
        """Everything that the next step depends on."""
        moments = {
            f"{key}.{name}": value
            for name, parameter in self.task.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }
        groups = {"model": self.task.state_dict(), "ema": self.ema.state_dict(), "optimizer": moments}
        return checkpoint.save(self.out, self.step, groups, {"settings": self.settings})

    def resume(self) -> None:
        """Take up the newest checkpoint of the run, if it has one and it is of this run."""
        newest = checkpoint.latest(self.out)
        if newest is None:
            self.log.cut(0)
            return
        groups, record = checkpoint.load(newest)
        self._require_same(record["settings"])
        _load(self.task, groups["model"], newest)
        _load(self.ema, groups["ema"], newest)
        parameters = dict(self.task.named_parameters())
        for key, value in groups["optimizer"].items():
            moment, name = key.split(".", 1)
            self.optimizer.state[parameters[name]][moment] = value.to(parameters[name].device)
        self.step = record["step"]
        self.log.cut(self.step)

    def _require_same(self, saved: dict[str, Any]) -> None:
        then, now = _flat(saved), _flat(self.settings)
        free = ["checkpoint_every", "train.checkpoint_every"]  # what no bit of the weights depends on
        if not self.config.cooldown:
            free += ["steps", "train.steps"]
        changed = [key for key in now if key not in free and then.get(key) != now[key]]
        if changed:
            raise ValueError(
                f"{self.out} holds a run with another {' and '.join(changed)}; give a new folder, or the old settings."
            )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _load(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(
            f"The checkpoint {path} is of another architecture: {str(error).splitlines()[-1].strip()}"
        ) from error
