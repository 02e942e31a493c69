"""Progress of a run: losses, validation losses and previews, on disk and in TensorBoard."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from tmatch.data.images import save_image
from tmatch.extras import needs_extra
from tmatch.files import no_link, write_text

REPORT_SECONDS = 60
"""Seconds between progress lines."""


class ProgressReport:
    """Progress on stderr: a bar in a terminal, one line per minute elsewhere; nothing unless `on`."""

    def __init__(self, steps: int, on: bool) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.fields[loss]}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=console, disable=not (on and console.is_terminal))
        self._task = self.bar.add_task("training", total=steps, loss="", speed="")
        self._lines = on and not console.is_terminal
        self._steps = steps
        self._last = time.monotonic()

    def at(self, step: int, loss: str = "", speed: str = "") -> None:
        """Report the state after a step."""
        self.bar.update(self._task, completed=step, loss=loss, speed=speed)
        if self._lines and time.monotonic() - self._last > REPORT_SECONDS:
            self._last = time.monotonic()
            print(f"tmatch: step {step} of {self._steps}, {loss}, {speed}", file=sys.stderr, flush=True)


class Log:
    """JSON lines, one per record."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """Return all complete lines."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        try:
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            return [row for row in rows if row["step"] >= 0]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.path} is damaged ({error}); fix or remove it to resume.") from error

    def append(self, step: int, **values: Any) -> None:  # noqa: ANN401
        """Append the values of a step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", opener=no_link) as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def truncate(self, step: int) -> None:
        """Drop the lines after a step, which a killed run wrote after its last checkpoint."""
        if self.path.exists():
            kept = "".join(json.dumps(line) + "\n" for line in self.read() if line["step"] <= step)
            write_text(self.path, kept)


class Monitor:
    """Losses and validation losses as JSON lines, previews as PNG files, and optionally all of them in TensorBoard."""

    def __init__(self, out: Path, tensorboard: bool = False) -> None:
        self.out = out
        self.losses = Log(out / "losses.jsonl")
        self.validations = Log(out / "validation.jsonl")
        self.tensorboard = tensorboard
        self.board: Any = None

    def loss(self, step: int, loss: float, rate: float) -> None:
        """Log the loss of the update that led to this step."""
        self.losses.append(step, loss=loss)
        if self.board is not None:
            self.board.add_scalar("loss", loss, step)
            self.board.add_scalar("learning rate", rate, step)

    def validation(self, step: int, losses: dict[str, dict[str, float]]) -> None:
        """Log losses on held-out data, {weights: {time: loss}}."""
        self.validations.append(step, **losses)
        if self.board is not None:
            for weights, values in losses.items():
                for where, value in values.items():
                    self.board.add_scalar(f"validation {weights}/{where}", value, step)

    def image(self, step: int, weights: str, image: Tensor) -> None:
        """Write a preview (3, height, width) in [0, 1]."""
        save_image(image, self._image_file(step, weights), scale=4)
        if self.board is not None:
            self.board.add_image(weights, image, step)

    def evaluated(self, step: int) -> tuple[bool, bool]:
        """Return whether the validation losses and the last preview of a step were written."""
        return any(line["step"] == step for line in self.validations.read()), self._image_file(step, "ema").is_file()

    def _image_file(self, step: int, weights: str) -> Path:
        return self.out / "previews" / f"step-{step:08d}-{weights}.png"

    def truncate(self, step: int) -> None:
        """Remove records after a step, and partial files; open TensorBoard."""
        for draft in (self.out / "previews").glob(".*.writing"):
            draft.unlink()
        self.losses.truncate(step)
        self.validations.truncate(step)
        if self.tensorboard and self.board is None:
            with needs_extra("TensorBoard logging", "tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self.board = SummaryWriter(str(self.out / "tensorboard"), purge_step=step + 1)

    def flush(self) -> None:
        """Write everything to disk."""
        if self.board is not None:
            self.board.flush()
