"""The training loop."""

import copy
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tmatch.files import locked
from tmatch.train import checkpoint
from tmatch.train.checkpoint import Tensors
from tmatch.train.config import TrainConfig
from tmatch.train.interrupt import interruptions, preempted, tell_preempted
from tmatch.train.monitor import Monitor, ProgressReport, Silent
from tmatch.train.resume import CONTENTS, require_same_run

Preview = Callable[["Task"], Tensor]
"""Draws an image (3, height, width) of what a task has learnt."""


class Task(nn.Module, ABC):
    """What is trained: networks, and a loss that depends on them, the seed, the step and nothing else."""

    @abstractmethod
    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        """The mean loss over one of `parts` equal parts of the batch of `size` samples at a step."""

    def validate(self) -> dict[str, float]:
        """Losses on data that is not trained on, always with the same noise."""
        return {}

    def compile_modules(self) -> list[nn.Module]:
        """What is worth compiling: the modules whose call takes the time."""
        return []

    def fsdp_modules(self) -> list[nn.Module]:
        """What is gathered at once where weights are sharded, the innermost first."""
        return []

    def deepcopy_memo(self) -> dict[int, Any]:
        """What a copy of the task, with averaged weights, has in common with it: the data."""
        return {}


class Trainer:
    """AdamW with an average of the weights; the same call goes on where the last one stopped.

    A run is a function of the configuration: killed at any moment and started again, it ends with the same bits.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        out: Path,
        about: BaseModel | None = None,
        preview: Preview | None = None,
        contents: str = "",
    ) -> None:
        """`about` is all that was set for the run; it is saved, and the run is not continued with other settings.

        Nor with other data, of which `contents` says what it is: a digest.
        """
        self.processes = config.processes()
        self.parts = config.parts()
        self.task = task.to(config.resolve_device())
        self.config = config
        self.out = out
        self.preview = preview
        self.settings = (about or config).model_dump(mode="json") | ({CONTENTS: contents} if contents else {})
        self.ema = copy.deepcopy(task, task.deepcopy_memo()).requires_grad_(False)
        self.loss = self.processes.prepare(task, task.fsdp_modules(), "loss")
        self.processes.shard(self.ema, self.ema.fsdp_modules())
        trained = [parameter for parameter in task.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
        for parameter in trained:  # AdamW would make these at its first step
            moments = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            self.optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}
        self.step = 0
        self.resumed = False
        self.monitor = Monitor(out, config.tensorboard) if self.processes.rank == 0 else Silent()
        if config.compile:
            for network in task.compile_modules():
                network.compile()

    def run(self, until: int | None = None, progress: bool = False) -> bool:
        """Train to the end, or `until` a step, from the last checkpoint if there is one; whether it got there.

        Interrupted (Ctrl-C, SIGTERM), it finishes its step, saves, and leaves the rest to the next call.
        """
        if not self.resumed:
            self.resume()
        with self._held():
            return self._run(until, progress)

    def _run(self, until: int | None, progress: bool) -> bool:
        last = self.config.steps if until is None else min(until, self.config.steps)
        first, started = self.step, time.perf_counter()
        report = ProgressReport(self.config.steps, progress and self.processes.rank == 0)
        with report, interruptions() as interrupted, self.config.products():
            report.at(self.step)
            owed = self._overdue() if self.step and self.processes.rank == 0 else (False, False)
            self._evaluate(*self.processes.broadcast(owed))
            while self.step < last and not self.processes.any_rank(bool(interrupted)):
                loss = self.update()
                self.monitor.loss(self.step, loss, self.config.rate(self.step - 1))
                speed = (self.step - first) * self.config.batch / (time.perf_counter() - started)
                report.at(self.step, f"loss {loss:.4f}", f"{speed:.0f} images/s")
                self.processes.finish_save()
                if self.step % self.config.checkpoint_every == 0 or self.step == last:
                    self.save()
                self._evaluate(*self._is_due())
            if self.step < last:
                self.save()
            self.processes.finish_save(wait=True)
            if self.processes.any_rank(preempted()):
                tell_preempted()
        self.monitor.flush()
        self.processes.drain()
        return self.step == last

    def _is_due(self) -> tuple[bool, bool]:
        """Whether it is time to measure, and whether to draw."""
        draw = self.preview is not None and _due(self.step, self.config.preview_every)
        return _due(self.step, self.config.validate_every), draw

    def _overdue(self) -> tuple[bool, bool]:
        """What of that is not there: the run was ended between saving and looking."""
        measure, draw = self._is_due()
        return measure and not self.monitor.measured(self.step), draw and not self.monitor.drew(self.step, "ema")

    def _evaluate(self, measure: bool, draw: bool) -> None:
        """Measure and draw what is learnt, with the weights as they are and with their average.

        What was saved is on the disk by then. What goes wrong here, such as memory that runs out, is said and does not
        end the training.
        """
        if not measure and not draw:
            return
        self.processes.finish_save(wait=True)
        losses: dict[str, dict[str, float]] = {}
        for name, networks in {"raw": self.task, "ema": self.ema}.items():
            task = self.processes.gather(networks)
            if task is not None and measure:
                with self._surviving("measured"), torch.no_grad(), self.config.autocast():
                    losses[name] = self.processes.to_device(task).validate()
            if task is not None and draw and self.preview is not None:
                with self._surviving("drawn from"), torch.no_grad(), self.config.autocast():
                    self.monitor.image(self.step, name, self.preview(self.processes.to_device(task)))
            self.processes.offload()
            self.processes.barrier()  # for the first, before the next weights are assembled
        if losses:
            self.monitor.validation(self.step, losses)

    @contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            print(f"tmatch: step {self.step} cannot be {what} and training goes on: {reason[0]}", file=sys.stderr)

    def update(self) -> float:
        """One step of the optimizer; its loss."""
        mine, losses = self.processes.local_parts(self.config.accumulate), []
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.step)
        for part in mine:
            with nullcontext() if part == mine[-1] else self.processes.no_sync():
                with self.config.autocast():
                    loss = self.loss(self.step, self.config.batch, part, self.parts) / len(mine)
                loss.backward()
            losses.append(loss.detach())
        norm = self.processes.full_tensor(nn.utils.clip_grad_norm_(self.task.parameters(), self.config.clip))
        self.optimizer.step()
        self.optimizer.zero_grad()
        averaged, weights = ([self.processes.to_local(p) for p in task.parameters()] for task in (self.ema, self.task))
        get_ema_multi_avg_fn(self.config.ema_decay(self.step))(averaged, weights, None)
        total = self.processes.mean(torch.stack(losses).cpu().double().sum())  # the host waits here, with all under way
        if not math.isfinite(total) or not torch.isfinite(norm):
            raise ValueError(
                f"Training diverged at step {self.step} (loss {total}, gradient {norm.item()}); start anew with a "
                "lower train.learning_rate. The checkpoints are from before."
            )
        self.step += 1
        return total

    def save(self) -> None:
        """Everything that the next step depends on."""
        self.processes.save(self.out, self.step, self._state(), {"settings": self.settings})

    def _state(self) -> Tensors:
        moments = {
            f"{key}.{name}": value
            for name, parameter in self.task.named_parameters()
            if parameter.requires_grad
            for key, value in self.optimizer.state[parameter].items()
        }
        return {"model": self.task.state_dict(), "ema": self.ema.state_dict(), "optimizer": moments}

    def resume(self) -> None:
        """Take up the newest checkpoint of the run, if it has one and it is of this run."""
        with self._held():
            newest = self.processes.broadcast(checkpoint.latest(self.out))
            if newest is not None:
                step = require_same_run(newest, self.config, self.settings)
                checkpoint.fill(newest, self._state(), self.processes.distribute_like)
                self.step = step
            self.resumed = True
            self.monitor.truncate(self.step)

    def _held(self) -> AbstractContextManager[None]:
        """The folder of the run, for this one alone."""
        return locked(self.out) if self.processes.rank == 0 else nullcontext()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
