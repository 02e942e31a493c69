"""Try bad input on every command and on the Python API: no traceback, no hang, no silently wrong result.

    python benchmarks/fuzz.py [--only PATTERN] [--show] [--out docs/results/fuzz.json]

Each case runs in its own process and folder, forked from one that has imported everything, with at most 6 GB of memory
and 20 s of CPU time. Cases about start-up and closed outputs run in a shell. A case passes if it ends with exit code 0
and results that can be verified, or with another code and one sentence. The cases are the tables of fuzz_commands.py,
fuzz_files.py and fuzz_python.py. Takes about 12 minutes on one core.
"""

import argparse
import ctypes
import fnmatch
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz_files import Case

ROOT = Path(__file__).parents[1]
MEMORY, CPU_SECONDS, WALL_SECONDS = 6 * 2**30, 20, 120
VERDICTS = ("error in a sentence", "success", "traceback", "hang", "silently wrong")
GOOD = VERDICTS[:2]
CRASH = re.compile(r"^(Traceback \(most recent|Exception ignored|Fatal Python error|terminate called)", re.MULTILINE)
SIGNALS = [128 + number for number in (signal.SIGXCPU, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)]
"""Exit codes of a shell whose command was killed."""
SENTENCE = re.compile(r"^tmatch[\w -]*: .*\Z|╰──|-----", re.MULTILINE)
"""The last line of stderr, or a box around an error of the parser."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters that no output may contain, except colours: terminal escapes and other control characters."""


def start(case: "Case", root: Path, cpu_seconds: int) -> int:
    """Fork the process of a case; its folder is `root`/work."""
    (root / "work").mkdir(parents=True)
    (root / "outside").mkdir()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = child(case, root, cpu_seconds)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def child(case: "Case", root: Path, cpu_seconds: int) -> int:
    """Prepare the folder of a case and run it with redirected output and limits; returns the exit code."""
    os.setsid()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler if signal_number == signal.SIGINT else signal.SIG_DFL)
    for target, name in ((0, os.devnull), (1, root / "stdout"), (2, root / "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), target)
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    os.chdir(root / "work")
    os.environ.update({"HOME": str(root), "TMATCH_CACHE": str(root / "cache"), "TMPDIR": str(root)})
    from fuzz_files import plant

    plant(root)
    case.setup()
    opened = watch(root / "outside")
    for key, value in {
        "AS": MEMORY,
        "CPU": max(cpu_seconds, CPU_SECONDS) if case.shell else cpu_seconds,
        "CORE": 0,
        **case.limits,
    }.items():
        number = getattr(resource, f"RLIMIT_{key}")
        limit = value if value >= 0 else virtual_memory() - value
        resource.setrlimit(number, (limit, resource.getrlimit(number)[1]))
    os.environ.update(case.env)
    code = execute(case)
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # as Python exits
    if opened():
        print("tmatch: fuzz: a file outside the folder was opened", file=sys.stderr)
    return code


def virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def execute(case: "Case") -> int:
    """Run a command line, Python code or a shell command."""
    if case.shell:
        os.environ["T"] = f"{sys.executable} -m tmatch"
        code = subprocess.run(["bash", "-c", f"set -o pipefail; {case.shell}"], check=False).returncode
        return code if code >= 0 else 128 - code
    from fuzz_python import run_code

    from tmatch.app.cli import main

    try:
        run_code(case.code) if case.code else main([os.fsdecode(word) for word in case.argv])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def watch(folder: Path) -> Any:  # noqa: ANN401
    """A function that returns whether a file of a folder was opened meanwhile, in any language (inotify)."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle, in_open, in_isdir = libc.inotify_init1(os.O_NONBLOCK), 0x20, 0x40000000
    libc.inotify_add_watch(handle, os.fsencode(folder), in_open)

    def opened() -> bool:
        try:
            events = os.read(handle, 2**16)
        except BlockingIOError:
            return False
        masks, position = [], 0
        while position < len(events):
            _, mask, _, length = struct.unpack_from("iIII", events, position)
            masks, position = [*masks, mask], position + 16 + length
        return any(not mask & in_isdir for mask in masks)

    return opened


def judge(case: "Case", root: Path, status: int, cpu: float, killed: bool) -> tuple[str, str]:
    """The verdict on a finished case, and a reason."""
    outputs = [(root / name).read_bytes().decode(errors="surrogateescape") for name in ("stdout", "stderr")]
    text, errors = "".join(outputs), outputs[1].rstrip()
    code = os.WEXITSTATUS(status)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else code - 128 if case.shell and code in SIGNALS else 0
    if killed or number == signal.SIGXCPU:
        return "hang", f"{cpu:.0f} s of CPU time"
    if number:
        return "traceback", f"killed by {signal.Signals(number).name}"
    if CRASH.search(text):
        lines = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
        return "traceback", lines[-1] if lines else text[-200:]
    if "tmatch: fuzz:" in errors:
        return "silently wrong", errors.splitlines()[-1]
    if found := CONTROL.findall(COLOUR.sub("", text)):
        return "silently wrong", f"control characters in the output: {found[:3]}"
    if code == 0 and case.expect == "error":
        return "silently wrong", "exit code 0 where an error is expected"
    if code and case.expect == "ok":
        return "silently wrong", f"exit code {code}: {errors.splitlines()[-1] if errors else ''}"
    from fuzz_files import leaked

    reason = leaked(root) or case.check(root, code)
    if reason:
        return "silently wrong", f"exit code {code}, {reason}"
    if code and not case.silent and not SENTENCE.search(errors):
        return "traceback", f"exit code {code} without one sentence: {errors[-300:]!r}"
    return GOOD[code == 0], errors.splitlines()[-1] if code and errors else ""


def run(
    cases: Sequence["Case"], workers: int, folder: Path, cpu_seconds: int = CPU_SECONDS
) -> Iterator[tuple["Case", str, str, float, str]]:
    """Run cases in parallel: case, verdict, reason, CPU seconds and what it printed to stderr."""
    waiting, running = list(enumerate(cases))[::-1], dict[int, tuple[Any, Path, float]]()
    while waiting or running:
        while waiting and len(running) < workers:
            number, case = waiting.pop()
            root = folder / f"{number:04d}"
            running[start(case, root, cpu_seconds)] = case, root, time.monotonic()
        time.sleep(0.005)
        for pid, (case, root, began) in list(running.items()):
            killed = time.monotonic() - began > WALL_SECONDS
            if killed:
                os.killpg(pid, signal.SIGKILL)
            done, status, usage = os.wait4(pid, 0 if killed else os.WNOHANG)
            if not done:
                continue
            del running[pid]
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what it left running
            cpu = usage.ru_utime + usage.ru_stime
            verdict, reason = judge(case, root, status, cpu, killed)
            yield case, verdict, reason, cpu, (root / "stderr").read_text(errors="replace")
            shutil.rmtree(root, ignore_errors=True)


def warm_up() -> None:
    """Import what the commands use, so that forked processes need not; starts no thread."""
    import datasets  # noqa: F401
    import diffusers
    import torch
    import transformers
    from pyarrow import parquet  # noqa: F401

    import tmatch.app.evaluate
    import tmatch.app.export
    import tmatch.app.generate
    import tmatch.app.plan
    import tmatch.app.prepare
    import tmatch.app.train
    import tmatch.pipeline  # noqa: F401

    for module, names in (
        (diffusers, "AutoencoderKL AutoencoderTiny VQModel"),
        (transformers, "T5EncoderModel AutoModel AutoTokenizer AutoModelForTextEncoding CLIPTextModel"),
    ):
        for name in names.split():
            getattr(module, name)
    torch.set_num_threads(1)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts of verdicts by group, and in total."""
    groups = [*dict.fromkeys(row["group"] for row in rows), "all"]
    result = []
    for group in groups:
        found = [row["verdict"] for row in rows if group in ("all", row["group"])]
        result.append({"group": group, "cases": len(found), **{name: found.count(name) for name in VERDICTS}})
    return result


def report(result: dict[str, Any]) -> str:
    """The page docs/fuzz.md."""
    columns = ["group", "cases", *VERDICTS]
    rows = [f"| {' | '.join(str(row[column]) for column in columns)} |" for row in result["groups"]]
    return "\n".join(
        [
            "# Bad input",
            "",
            "<!-- Generated by `make docs`; do not edit. -->",
            "",
            "What the commands and the Python API do with bad input: wrong numbers for every numeric option, hostile",
            "model folders and data, damaged checkpoints, resource limits, closed and full outputs, and misuse from",
            "Python. Each case has 20 s of CPU time and 6 GB of memory. It must end with one sentence and a non-zero",
            "exit code, or with a result that can be verified. An error of several lines counts as a traceback.",
            "`python benchmarks/fuzz.py --out docs/results/fuzz.json` measures this table.",
            "",
            f"| {' | '.join(columns)} |",
            f"|{'---|' * len(columns)}",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="PATTERN", help="cases whose 'group: name' contains this, or matches it with *"
    )
    parser.add_argument("--show", action="store_true", help="print the stderr of each case")
    parser.add_argument("--cpu", type=int, default=CPU_SECONDS, help="seconds of CPU time per case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    os.environ.update(offline)
    sys.path.insert(0, str(ROOT))  # for this process, as PYTHONPATH is for shells
    began, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = Path(temporary)
        os.environ["HF_HOME"] = str(folder / "hub")
        warm_up()
        from fuzz_commands import command_cases
        from fuzz_files import FIXTURES, file_cases
        from fuzz_python import python_cases

        os.environ["FIXTURES"] = str(folder / "fixtures")
        for case, verdict, reason, _, errors in run(FIXTURES, 1, folder / "making"):
            if verdict != "success":
                raise SystemExit(f"{case.name} failed ({reason}):\n{errors}")
        cases = [*command_cases(), *file_cases(), *python_cases()]
        pattern = args.only if args.only is None or "*" in args.only else f"*{args.only}*"
        chosen = [case for case in cases if pattern is None or fnmatch.fnmatch(f"{case.group}: {case.name}", pattern)]
        for case, verdict, reason, cpu, errors in run(chosen, args.workers, folder / "cases", args.cpu):
            rows.append({"group": case.group, "name": case.name, "verdict": verdict, "reason": reason})
            if args.show or verdict not in GOOD:
                print(f"{verdict:>20}  {cpu:4.1f} s  {case.group}: {case.name}  {reason[:400]}", flush=True)
            if args.show and errors:
                print("".join(f"    {line}\n" for line in errors[-3000:].splitlines()[-25:]))
    groups = summary(rows)
    found = [row for row in rows if row["verdict"] not in GOOD]
    result = {"groups": groups, "found": found, "minutes": round((time.monotonic() - began) / 60, 1)}
    print(report(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    if found:
        raise SystemExit(f"{len(found)} of {len(rows)} cases failed.")


if __name__ == "__main__":
    main()
