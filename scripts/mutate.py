"""Mutation testing: does a test fail when the code is wrong? Prints the mutants that survive: `make mutate`.

Each row of scripts/mutants.py is a plausible mistake. The script applies one at a time to a copy of the project and
runs the tests that the row names. They do not include the golden values, which say that a number changed and not which
one is right. Exit code 1: a mutant survived. Exit code 2: a mutant does not apply, or its tests fail without it.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import Process, connection, get_context
from pathlib import Path
from typing import NamedTuple

from mutants import MUTANTS

ROOT = Path(__file__).parents[1]
FOLDERS = ("tmatch", "tests", "docs", "examples", "benchmarks", "scripts")
PRELOADED = (
    "PIL.Image", "einops", "pydantic", "pytest", "rich.progress", "safetensors.torch", "sympy", "torch._dynamo",
    "torch.testing", "transformers.models.llama",
)  # fmt: skip
"""What tests import, and what torch imports on first use: once, and not in every worker."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest; others say that it did not run the tests."""


class Mutant(NamedTuple):
    """A mistake: `old` becomes `new` in a file, and one of `tests` has to fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def problem(self) -> str | None:
        """Why the mutant does not apply to the project, if so."""
        count = (ROOT / self.file).read_text().count(self.old) if (ROOT / self.file).is_file() else 0
        missing = [test for test in self.tests if not (ROOT / test.partition("::")[0]).exists()]
        if count != 1:
            return f"{self.name}: the old text occurs {count} times in {self.file}, not once"
        return f"{self.name}: {missing[0]} does not exist" if missing else None


def table() -> list[Mutant]:
    """All mutants; the paths of their table are relative to tmatch/ and tests/."""
    found = []
    for file, (usual, rows) in MUTANTS.items():
        for name, (old, new, *own) in rows.items():
            tests = tuple(f"tests/{test}" for test in (own[0] if own else usual).split())
            found.append(Mutant(name, f"tmatch/{file}", old, new, tests))
    return found


def copy_project(to: Path) -> Path:
    """Copy what the tests read, and return the copy."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def run_tests(project: Path, tests: tuple[str, ...]) -> None:
    """Run tests of a project in this process, which has not imported tmatch yet, and exit with pytest's code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(project / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(project)
    os.environ["PYTHONPATH"] = str(project)
    sys.path.insert(0, str(project))
    sys.dont_write_bytecode = True  # bytecode of a mutant would outlive it: files change within a second
    import pytest

    code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
    origin = Path(str(sys.modules["tmatch"].__file__)) if "tmatch" in sys.modules else project
    sys.stdout.flush()
    os._exit(code if origin.is_relative_to(project) else 99)


@dataclass
class Job:
    """A copy of the project with a mutant, or with None, and the process that tests it."""

    project: Path
    mutant: Mutant | None
    tests: tuple[str, ...]
    started: float = field(default_factory=time.perf_counter)

    def start(self) -> Process:
        if self.mutant is not None:
            text = (ROOT / self.mutant.file).read_text()
            (self.project / self.mutant.file).write_text(text.replace(self.mutant.old, self.mutant.new))
        process = get_context("fork").Process(target=run_tests, args=(self.project, self.tests))
        process.start()
        return process

    def finish(self, code: int | None) -> str:
        """Restore the copy and return 'killed', 'SURVIVED' or 'ERROR', with what happened; no code is a timeout."""
        output = (self.project / "output.txt").read_text(errors="replace")
        seconds = f"{time.perf_counter() - self.started:5.1f} s"
        failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
        if self.mutant is None:
            passed = f"{'':8} {seconds}  the tests pass without a mutant"
            return passed if code == PASSED else f"ERROR the tests fail without a mutant:\n{output[-3000:]}"
        shutil.copy(ROOT / self.mutant.file, self.project / self.mutant.file)
        if code not in (PASSED, FAILED, None):
            return f"ERROR {self.mutant.name}: the tests do not run (exit code {code}):\n{output[-3000:]}"
        by = "" if code == PASSED else f", by {failed[1] if failed else 'the time limit'}"
        return f"{'SURVIVED' if code == PASSED else 'killed':8} {seconds}  {self.mutant.name}{by}"


def run(mutants: list[Mutant], workers: int, limit: float) -> list[str]:
    """Test all mutants, and their tests without any, and return a line for each."""
    lines, running = [], dict[Process, Job]()
    waiting: list[Mutant | None] = [None, *mutants]
    everything = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    with tempfile.TemporaryDirectory(prefix="tmatch-mutate-") as folder:
        free = [copy_project(Path(folder) / str(k)) for k in range(workers)]
        try:
            while waiting or running:
                while waiting and free:
                    mutant = waiting.pop(0)
                    job = Job(free.pop(), mutant, everything if mutant is None else mutant.tests)
                    running[job.start()] = job
                connection.wait([process.sentinel for process in running], timeout=1)
                for process, job in list(running.items()):
                    late = time.perf_counter() - job.started > limit * (1 if job.mutant else 10)
                    if process.is_alive() and not late:
                        continue
                    code = None if process.is_alive() else process.exitcode
                    process.kill()
                    process.join()
                    lines.append(job.finish(code))
                    print(lines[-1], flush=True)
                    free.append(running.pop(process).project)
        finally:
            for process in running:
                process.kill()
                process.join()
    return lines


def main() -> int:
    """Run the mutants that are requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", default="", help="run the mutants whose name or file contains this")
    parser.add_argument("--list", action="store_true", help="list the mutants and exit")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="processes, of one thread each (default: 2)")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="seconds per mutant; a hang is a kill")
    options = parser.parse_args()
    chosen = [mutant for mutant in table() if options.only in f"{mutant.file} {mutant.name}"]
    if options.list:
        print("\n".join(f"{mutant.file}: {mutant.name}" for mutant in chosen))
        return 0
    if not chosen or options.j < 1:
        parser.error("no mutant matches --only" if not chosen else "-j must be at least 1")
    if problems := [problem for mutant in chosen if (problem := mutant.problem())]:
        print("\n".join(problems), file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes the copies
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    for name in PRELOADED:
        import_module(name)
    started = time.perf_counter()
    lines = run(chosen, options.j, options.limit)
    survivors, errors = ([line for line in lines if line.startswith(kind)] for kind in ("SURVIVED", "ERROR"))
    print(f"{len(survivors)} of {len(chosen)} mutants survived ({time.perf_counter() - started:.0f} s)")
    print(*survivors, *errors, sep="\n")
    return 2 if errors else 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
