"""The command line, in process: a new process would need seconds to start."""

from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from tmatch.app.cli import main

SETTINGS = {
    "backbone.width": 16, "backbone.depth": 1, "backbone.heads": 2, "head.width": 16, "head.depth": 1,
    "text.width": 16, "text.heads": 2, "data.images": 40, "eval-prompts": 4, "validation-images": 4,
    "train.batch-size": 4, "train.warmup": 0, "train.cooldown": 0, "train.checkpoint-every": 2, "sampling.steps": 2,
}  # fmt: skip
SMALL = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, cwd: Path | None = None) -> Done:
    """Run `tmatch` with these arguments."""
    stdout, stderr, code = StringIO(), StringIO(), 0
    with redirect_stdout(stdout), redirect_stderr(stderr), chdir(cwd or Path.cwd()):
        try:
            main(arguments)
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
    return Done(code, stdout.getvalue(), stderr.getvalue())


def succeed(*arguments: str, cwd: Path | None = None) -> Done:
    """Run a command that must succeed."""
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def assert_rejected(done: Done, *words: str) -> None:
    """Exit code 2 and one message with these words, wherever its lines are wrapped."""
    assert done.returncode == 2, done.stderr
    message = " ".join(done.stderr.replace("│", " ").split())
    assert all(word in message for word in words), message
    assert "Traceback" not in done.stderr
