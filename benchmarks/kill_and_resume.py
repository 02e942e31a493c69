"""Kill every command that writes a folder at random moments, rerun it, and compare all bytes with an undisturbed run.

    python benchmarks/kill_and_resume.py [--commands train export] [--share 0.1]
        [--out docs/results/kill_and_resume.json]

For each command, one run is undisturbed. The others get SIGKILL, now and then SIGTERM or SIGINT, and are rerun by the
same command until they finish. The moment is uniform, in CPU time, between the first write and the end of the
undisturbed run, plus a few milliseconds, which may be spent waiting for the disk. Then all files of both are compared:
those of the output folder, and the cache of encoded images, of which each run has its own. No file is left out, except
where SIGTERM or SIGINT has made training save at a step of its own: of its checkpoints, only the newest is then
compared. Processes fork from this one, which has imported everything. It needs Linux.
"""

import argparse
import hashlib
import importlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from prepare import build_encoders, write_images

from tmatch.app.cli import main as tmatch
from tmatch.files import WRITING
from tmatch.train.checkpoint import draft

PRELOADED = (
    "diffusers.models.autoencoders.autoencoder_tiny", "peft", "tmatch.app.export", "tmatch.app.generate",
    "tmatch.app.prepare", "tmatch.app.train", "torch._dynamo", "transformers.models.t5.modeling_t5",
)  # fmt: skip
SIZES = {
    "backbone.width": 32, "backbone.depth": 2, "backbone.heads": 2, "head.width": 32, "head.depth": 1,
    "train.batch-size": 8, "train.validate-every": 3, "train.preview-every": 8, "train.checkpoint-every": 2,
    "train.steps": 24, "sampling.steps": 2,
}  # fmt: skip
SHAPES = {"text.width": 32, "text.heads": 2, "data.images": 64, "eval-prompts": 2, "validation-images": 4}
PROMPTS = ["a red circle", "a blue square", "three crosses", "a green triangle and a red cross"]
IMAGES = 160
"""Images to prepare, in chunks of 16."""
INTERRUPTS = {signal.SIGTERM: 0.08, signal.SIGINT: 0.08}
"""The share of signals other than SIGKILL."""
LIMIT = 120
"""Seconds after which a process hangs."""
DELAY = 0.02
"""The longest wait between the CPU time of a kill and the kill, in seconds."""
MOST_PROBLEMS = 5
"""Of a command, after which it is not run again."""


@dataclass(frozen=True)
class Command:
    """Arguments of `tmatch` without --out, how often to kill it, and what its folder shows of its progress."""

    arguments: list[str]
    kills: int
    progress: str
    count: Callable[[Path], int]


@dataclass
class Outcome:
    """What happened to the runs of a command: the signals that hit, the progress at each, and what went wrong."""

    runs: int = 0
    signals: Counter[signal.Signals] = field(default_factory=Counter)
    during_a_write: int = 0
    reached: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def fork(work: Callable[[], None], log: Path, cache: Path) -> int:
    """Call a function in a child process, with its output in a file; returns the pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        _child(work, log, cache)
    return pid


def _child(work: Callable[[], None], log: Path, cache: Path) -> NoReturn:
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["TMATCH_CACHE"] = str(cache)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, cpu_seconds: float = math.inf) -> int | None:
    """The exit code of a child, negative for a signal; None if it still runs after this much CPU time, or hangs."""
    end, cpu_clock = time.monotonic() + LIMIT, ~pid << 3 | 2
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.clock_gettime(cpu_clock) >= cpu_seconds or time.monotonic() > end:
            return None
        time.sleep(0.001)


class Run:
    """A command in a folder of its own; running it again resumes."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command = command
        self.folder = folder
        self.files = folder / "files"
        self.out = self.files / "out"
        self.log = folder / "log"

    def start(self, work: Callable[[list[str]], None] = tmatch) -> int:
        arguments = [*self.command.arguments, "--out", str(self.out)]
        return fork(lambda: work(arguments), self.log, self.files / "cache")

    def finish(self) -> None:
        self._require_success(wait(self.start()))

    def time(self) -> tuple[float, float]:
        """Run to the end; returns the CPU time at the first write and at the end, in seconds."""
        moments = self.folder / "moments"

        def work(arguments: list[str]) -> None:
            first: list[float] = []

            def watch(event: str, args: tuple[Any, ...]) -> None:
                if event == "open" and not first and args[2] & os.O_CREAT and str(self.files) in str(args[0]):
                    first.append(time.process_time())

            sys.addaudithook(watch)
            tmatch(arguments)
            moments.write_text(json.dumps([*first, time.process_time()]))

        self._require_success(wait(self.start(work)))
        first, last = json.loads(moments.read_text())
        return first, last

    def interrupt(self, cpu_seconds: float, delay: float, number: signal.Signals) -> bool:
        """Run, and send a signal at some moment; returns whether it ended the process, which may finish first."""
        before = self.log.stat().st_size if self.log.exists() else 0
        pid = self.start()
        code = wait(pid, cpu_seconds)
        if code is None:
            time.sleep(delay)
            os.kill(pid, number)
            code = wait(pid)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        elif code == -number or "interrupted" in self.log.read_text()[before:]:
            return True
        self._require_success(code)
        return False

    def _require_success(self, code: int | None) -> None:
        if code != 0:
            what = f"exit code {code}" if code is not None else f"no end within {LIMIT} s"
            raise RuntimeError(f"{what}: {self.log.read_text().strip()[-500:]}")

    def contents(self) -> dict[str, str]:
        """A digest of each file."""
        found = sorted(path for path in self.files.rglob("*") if path.is_file())
        return {str(path.relative_to(self.files)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}

    def is_writing(self) -> bool:
        """Whether a file or a checkpoint is incomplete."""
        return draft(self.out).exists() or any(self.files.rglob(f"*{WRITING}"))


def newest_checkpoint(contents: dict[str, str]) -> dict[str, str]:
    """The files without those of older checkpoints."""
    steps = sorted({part for name in contents for part in Path(name).parts if part.startswith("step-")})
    return {name: digest for name, digest in contents.items() if not set(Path(name).parts) & set(steps[:-1])}


def disturb(
    run: Run, expected: dict[str, str], between: tuple[float, float], outcome: Outcome, rng: random.Random
) -> None:
    """Kill a run at random moments until it finishes, and compare it."""
    outcome.runs += 1
    interrupted = False
    try:
        while run.contents() != expected:  # it may be killed after its last write
            if outcome.signals[signal.SIGKILL] == run.command.kills:
                run.finish()
                break
            (number,) = rng.choices([signal.SIGKILL, *INTERRUPTS], [1 - sum(INTERRUPTS.values()), *INTERRUPTS.values()])
            if not run.interrupt(rng.uniform(*between), rng.uniform(0, DELAY), number):
                break
            interrupted |= number in INTERRUPTS
            outcome.signals[number] += 1
            outcome.during_a_write += run.is_writing()
            outcome.reached.append(run.command.count(run.out))
        found = run.contents()
        if interrupted:
            expected, found = newest_checkpoint(expected), newest_checkpoint(found)
        different = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        if different:
            outcome.problems.append(f"{run.folder.name} differs in {', '.join(different[:5])}")
    except RuntimeError as error:
        outcome.problems.append(f"{run.folder.name}: {error}")


def commands(folder: Path, share: float) -> dict[str, Command]:
    """The six commands; most of them read what an earlier one wrote undisturbed."""

    def written(name: str) -> str:
        return str(folder / name / "undisturbed" / "files" / "out")

    def steps(out: Path) -> int:
        return len(log.read_text().splitlines()) if (log := out / "losses.jsonl").exists() else 0

    def files(pattern: str) -> Callable[[Path], int]:
        return lambda out: len(list(out.glob(pattern)))

    def exported(out: Path) -> int:
        return len(list(out.parent.glob("*out*/**/*.*")))  # also in the draft beside it

    def options(settings: dict[str, int]) -> list[str]:
        return [word for name, value in settings.items() for word in (f"--{name}", str(value))]

    encoders = ["--autoencoder", str(folder / "autoencoder"), "--text", str(folder / "text")]
    chunks = ["--size", "32", "--chunk", "16", "--batch-size", "4"]
    shapes = ["train", "shapes-dtm-mean", *options(SIZES | SHAPES)]
    shards = ["train", "shards-dtm", *options(SIZES), "--data.folders", written("prepare"), "--data.workers", "1"]
    batches = ["--model", written("train"), "--images", "32", "--batch-size", "8", "--steps", "4"]
    table: dict[str, tuple[list[str], int, str, Callable[[Path], int]]] = {
        "prepare": (["prepare", str(folder / "images"), *encoders, *chunks], 40, "chunks", files("chunks/*.json")),
        "train": (shapes, 40, "steps", steps),
        "shards": (shards, 40, "steps", steps),
        "lora": ([*shapes, "--init.model", written("train"), "--init.lora", "4"], 30, "steps", steps),
        "export": (["export", written("shards")], 20, "files", exported),
        "generate": (["generate", *PROMPTS, *batches], 40, "images", files("*.png")),
    }
    return {name: Command(words, math.ceil(share * kills), *rest) for name, (words, kills, *rest) in table.items()}


def build(folder: Path) -> None:
    """Write the images and encoders that the commands read."""

    def work() -> None:
        build_encoders(folder)
        write_images(folder / "images", IMAGES)

    if wait(fork(work, folder / "log", folder / "cache")) != 0:
        raise RuntimeError((folder / "log").read_text())


def measure(
    command: Command, folder: Path, undisturbed: Run, between: tuple[float, float], rng: random.Random
) -> dict[str, Any]:
    """Disturb runs of a command until it has been killed often enough."""
    outcome, expected = Outcome(), undisturbed.contents()
    while outcome.signals[signal.SIGKILL] < command.kills and len(outcome.problems) < MOST_PROBLEMS:
        disturb(Run(command, folder / f"run-{outcome.runs}"), expected, between, outcome, rng)
    reached, total = outcome.reached, command.count(undisturbed.out)
    return {
        "cpu_seconds": round(between[1], 1),
        "runs": outcome.runs,
        "identical": outcome.runs - len(outcome.problems),
        "kills": outcome.signals[signal.SIGKILL],
        "interrupts": sum(outcome.signals[number] for number in INTERRUPTS),
        "during_a_write": outcome.during_a_write,
        "before_the_first": reached.count(0),
        "after_the_last": reached.count(total),
        "of": f"{total} {command.progress}",
        "reached": " ".join(map(str, sorted(reached))),
        "files": len(expected),
        "problems": outcome.problems,
    }


def report(result: dict[str, Any]) -> str:
    """A Markdown table."""
    rows: dict[str, dict[str, Any]] = result["commands"]
    columns = [name for name in next(iter(rows.values())) if name not in ("reached", "problems")]
    lines = [["command", *columns], ["---"] * (1 + len(columns))]
    lines += [[name, *(str(row[column]) for column in columns)] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("_", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", help="only these of prepare, train, shards, lora, export, generate")
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a process with running threads cannot fork safely
    for module in PRELOADED:
        importlib.import_module(module)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        for name, command in commands(folder, args.share).items():
            undisturbed = Run(command, folder / name / "undisturbed")
            between, rng = undisturbed.time(), random.Random(f"{name} {args.seed}")
            if args.commands is None or name in args.commands:
                rows[name] = measure(command, folder / name, undisturbed, between, rng)
                print(f"{name}: {json.dumps(rows[name])}", flush=True)
    counts = ("runs", "identical", "kills", "interrupts", "during_a_write")
    result = {"seed": args.seed, **{key: sum(row[key] for row in rows.values()) for key in counts}, "commands": rows}
    print(report(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    if result["identical"] != result["runs"]:
        raise SystemExit("Some runs failed or differ from the undisturbed run.")


if __name__ == "__main__":
    main()
