"""Kill a training run with SIGKILL at random times, resume it, and compare it to the bit with an uninterrupted run.

    python benchmarks/kill_and_resume.py [--kills 20] [--out docs/results/kill_and_resume.json]

The run is `tmatch train` with a checkpoint at every step, so that many kills happen while one is written.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-c", "from tmatch.app.cli import main; main()", "train", "shapes-dtm-mean"]
SIZES = {
    "backbone.width": 64, "backbone.depth": 2, "head.width": 64, "text.width": 64, "data.images": 64, "eval-prompts": 2,
    "validation-images": 4, "train.batch-size": 8, "train.validate-every": 3, "train.preview-every": 10,
    "train.checkpoint-every": 1,
}  # fmt: skip
SMALL = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


def start(out: Path, steps: int) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *SMALL, "--train.steps", str(steps), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def finish(out: Path, steps: int) -> None:
    if start(out, steps).wait() != 0:
        raise SystemExit(f"The run in {out} failed.")


def result(out: Path) -> dict[str, bytes]:
    """All files of a run."""
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


def interrupt(out: Path, steps: int, rng: random.Random) -> str:
    """Start, wait for a random remaining step and a random time after it, and kill."""
    log = out / "losses.jsonl"
    done = len(log.read_text().splitlines()) if log.exists() else 0
    target = rng.randint(done, steps - 1)
    process = start(out, steps)
    while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < target):
        time.sleep(0.002)
    time.sleep(rng.random() * 0.05)
    process.kill()
    process.wait()
    return "writing" if (out / "writing").exists() else "computing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder, "alone")
        finish(alone, args.steps)
        expected = result(alone)
        caught, identical = [], 0
        for kill in range(args.kills):
            out = Path(folder, f"killed-{kill}")
            caught.append(interrupt(out, args.steps, rng))
            finish(out, args.steps)
            identical += result(out) == expected
    text = json.dumps(
        {"kills": args.kills, "during_a_write": caught.count("writing"), "identical": identical}, indent=2
    )
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")
    if identical != args.kills:
        raise SystemExit("Some resumed runs differ from the uninterrupted run.")


if __name__ == "__main__":
    main()
