"""The losses of a run, a line a step."""

import json
from pathlib import Path


class LossLog:
    """A line for each step; `cut` drops what a killed run wrote after its last checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, float]]:
        """Every whole line."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def append(self, step: int, loss: float) -> None:
        """The loss of the update that led to this step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss}) + "\n")

    def cut(self, step: int) -> None:
        """Keep the lines up to a step."""
        if self.path.exists():
            kept = "".join(json.dumps(line) + "\n" for line in self.read() if line["step"] <= step)
            draft = self.path.with_suffix(".writing")
            draft.write_text(kept)
            draft.rename(self.path)
