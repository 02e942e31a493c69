"""The training loop."""

import copy
import math
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tmatch.config import Config
from tmatch.files import locked
from tmatch.reading import first_line
from tmatch.tensors import warn_if_emulated
from tmatch.train import checkpoint
from tmatch.train.checkpoint import Tensors
from tmatch.train.config import TrainConfig
from tmatch.train.distributed import Distributed
from tmatch.train.interrupt import Interrupted, interruptions
from tmatch.train.launch import init_distributed
from tmatch.train.monitor import Monitor, ProgressReport
from tmatch.train.optimizer import build_optimizers
from tmatch.train.resume import CONTENTS, require_same_run

Preview = Callable[["Task"], Tensor]
"""Generates an image (3, height, width) with the weights of a task."""


class Task(nn.Module, ABC):
    """Networks and their loss, a function of the weights, the seed and the step; `forward` is the loss."""

    @abstractmethod
    def loss(self, step: int, size: int, part: int, parts: int) -> Tensor:
        """Return the mean loss over one of `parts` equal parts of the batch of `size` samples of a step."""

    def forward(self, step: int, size: int, part: int, parts: int) -> Tensor:
        return self.loss(step, size, part, parts)

    def validate(self) -> dict[str, float]:
        """Return losses on held-out data, with the same noise at each call."""
        return {}

    def compile_modules(self) -> list[nn.Module]:
        """Return the modules to compile."""
        return []

    def fsdp_modules(self) -> list[nn.Module]:
        """Return the modules whose weights FSDP gathers together, innermost first."""
        return []

    def deepcopy_memo(self) -> dict[int, Any]:
        """Return what a copy of the task shares with it: the data."""
        return {}


class Trainer:
    """An optimizer with an exponential moving average of the weights; a rerun resumes from the newest checkpoint.

    A run is a function of its configuration: killed at any moment and resumed, it ends with the same bits.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        out: Path,
        run_config: Config | None = None,
        preview: Preview | None = None,
        contents: str = "",
        distributed: Distributed | None = None,
    ) -> None:
        """`run_config` is the configuration of the whole run (default: `config`) and `contents` a digest of its data.

        Both are saved; a run with other settings or other data does not resume.
        """
        self.distributed = distributed or init_distributed(config)
        self.parts = config.parts()
        self.task = task.to(config.resolve_device())
        warn_if_emulated(config.precision, config.resolve_device().type)
        self.config = config
        self.run_config = run_config or config
        self.contents = contents
        self.out = out
        self.preview = preview
        self.ema = copy.deepcopy(task, task.deepcopy_memo()).requires_grad_(False)
        self._loss = self.distributed.prepare(task, task.fsdp_modules())
        self.distributed.shard(self.ema, self.ema.fsdp_modules())
        self.optimizers = build_optimizers(task, config)
        self.step = 0
        self.resumed = False
        self.monitor = Monitor(out, config.tensorboard)  # of rank 0
        if config.compile:
            for network in task.compile_modules():
                network.compile()

    def run(self, until: int | None = None, progress: bool = False) -> None:
        """Train to the end, or `until` a step, from the newest checkpoint if any.

        On Ctrl-C or SIGTERM it finishes its step, saves, and raises `Interrupted`; the next call resumes.
        """
        if not self.resumed:
            self.resume()
        with self._locked():
            self._run(until, progress)

    def _run(self, until: int | None, progress: bool) -> None:
        last = self.config.steps if until is None else min(until, self.config.steps)
        first, started = self.step, time.perf_counter()
        report = ProgressReport(self.config.steps, progress and self.distributed.rank == 0)
        with report.bar, interruptions() as interrupted, self.config.matmul_precision():
            report.at(self.step)
            self._evaluate(*self.distributed.broadcast(self._overdue() if self.step else (False, False)))
            while self.step < last and not self.distributed.any_rank(bool(interrupted)):
                loss = self.update()
                if self.distributed.rank == 0:
                    self.monitor.loss(self.step, loss, self.config.learning_rate_at(self.step - 1))
                speed = (self.step - first) * self.config.batch_size / (time.perf_counter() - started)
                report.at(self.step, f"loss {loss:.4f}", f"{speed:.0f} images/s")
                self.distributed.finish_save()
                if self.step % self.config.checkpoint_every == 0 or self.step == last:
                    self.save()
                self._evaluate(*self._due())
            if self.step < last:
                self.save()
            self.distributed.finish_save(wait=True)
            preempted = self.distributed.any_rank(interrupted[-1:] == [signal.SIGTERM])
        self.monitor.flush()
        self.distributed.drain()
        if self.step < last:
            raise Interrupted(self.step, preempted)

    def _due(self) -> tuple[bool, bool]:
        """Return whether a validation and a preview are due."""
        validate, preview = (
            every > 0 and self.step % every == 0 for every in (self.config.validate_every, self.config.preview_every)
        )
        return validate, preview and self.preview is not None

    def _overdue(self) -> tuple[bool, bool]:
        """Return which of them are missing, because the run stopped between saving and evaluation."""
        (validate, preview), done = self._due(), self.monitor.evaluated(self.step)
        return validate and not done[0], preview and not done[1]

    def _evaluate(self, validate: bool, preview: bool) -> None:
        """Validate and preview, with the current weights and with their average.

        The checkpoint is complete by then. Errors, such as running out of memory, are printed and training continues.
        """
        if not validate and not preview:
            return
        self.distributed.finish_save(wait=True)
        losses: dict[str, dict[str, float]] = {}
        for name, networks in {"raw": self.task, "ema": self.ema}.items():
            task = self.distributed.gather(networks)
            if task is not None and validate:
                with self._continue_on_error("Validation"), torch.no_grad(), self.config.autocast():
                    losses[name] = self.distributed.to_device(task).validate()
            if task is not None and preview and self.preview is not None:
                with self._continue_on_error("The preview"), torch.no_grad(), self.config.autocast():
                    self.monitor.image(self.step, name, self.preview(self.distributed.to_device(task)))
            self.distributed.offload()
            self.distributed.barrier()  # before the next weights are gathered
        if losses:
            self.monitor.validation(self.step, losses)

    @contextmanager
    def _continue_on_error(self, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            failure = f"{what} at step {self.step} failed, training continues"
            print(f"tmatch: {failure}: {first_line(error)}", file=sys.stderr)

    def update(self) -> float:
        """Take one optimizer step and return its loss."""
        mine, losses = self.distributed.local_parts(self.config.gradient_accumulation_steps), []
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.config.learning_rate_at(self.step)
        for part in mine:
            with nullcontext() if part == mine[-1] else self.distributed.no_sync():
                with self.config.autocast():
                    loss = self._loss(self.step, self.config.batch_size, part, self.parts) / len(mine)
                loss.backward()
            losses.append(loss.detach())
        norm = self.distributed.full_tensor(nn.utils.clip_grad_norm_(self.task.parameters(), self.config.max_grad_norm))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        averaged, weights = ([self.distributed.to_local(p) for p in t.parameters()] for t in (self.ema, self.task))
        get_ema_multi_avg_fn(self.config.ema_decay_at(self.step))(averaged, weights, None)
        total = self.distributed.mean(torch.stack(losses).cpu().double().sum())  # synchronizes with the device
        if not math.isfinite(total) or not torch.isfinite(norm):
            raise self._diverged(f"loss {total}, gradient norm {norm.item()}")
        self.step += 1
        return total

    def _diverged(self, reason: str) -> ValueError:
        self.distributed.finish_save(wait=True)  # of an earlier step
        return ValueError(
            f"Training diverged at step {self.step} ({reason}); start a new run with a lower train.learning_rate. "
            "Existing checkpoints are intact."
        )

    def require_finite(self, tensors: Iterable[Tensor]) -> None:
        """Raise on all processes if the weights of one of them contain NaN or infinity."""
        local = map(self.distributed.to_local, tensors)  # a finite sum, which is faster, leaves no doubt
        if self.distributed.any_rank(any(not x.sum().isfinite() and not x.isfinite().all() for x in local)):
            raise self._diverged("weights that are not finite")

    def save(self) -> None:
        """Save everything that the next step depends on."""
        state = self._state()
        self.require_finite(checkpoint.flatten(state).values())
        settings = self.run_config.model_dump(mode="json") | ({CONTENTS: self.contents} if self.contents else {})
        self.distributed.save(self.out, self.step, state, {"settings": settings})

    def _state(self) -> Tensors:
        states = {parameter: state for one in self.optimizers for parameter, state in one.state.items()}
        moments = {
            f"{key}.{name}": value
            for name, parameter in self.task.named_parameters()
            if parameter.requires_grad
            for key, value in states[parameter].items()
        }
        return {"model": self.task.state_dict(), "ema": self.ema.state_dict(), "optimizer": moments}

    def resume(self) -> None:
        """Load the newest checkpoint, if there is one; raise if it belongs to another run."""
        with self._locked():
            newest = self.distributed.broadcast(checkpoint.latest(self.out))
            if newest is not None:
                self.step = require_same_run(newest, self.run_config, self.contents)
                self._verify(newest)
                checkpoint.fill(newest, self._state(), self.distributed.distribute_like)
            self.resumed = True
            if self.distributed.rank == 0:
                checkpoint.prune(self.out)
                self.monitor.truncate(self.step)

    def _verify(self, newest: Path) -> None:
        """Verify a checkpoint, each file by one process; all processes raise if one of them finds damage."""
        damage = ""
        try:
            checkpoint.verify(newest, checkpoint.files(newest)[self.distributed.rank :: self.distributed.world])
        except (ValueError, OSError) as error:
            damage = str(error)
        if self.distributed.any_rank(bool(damage)):
            raise ValueError(damage or f"Another process found damage in the checkpoint {newest}.")

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.out) if self.distributed.rank == 0 else nullcontext()
