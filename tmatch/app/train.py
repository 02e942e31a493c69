"""`tmatch train`."""

import json
import sys
from pathlib import Path

from tmatch.app.overrides import as_file
from tmatch.app.parse import INTERRUPTED
from tmatch.ranks import rank_and_world_size
from tmatch.runs import AnyRun, fit, preflight
from tmatch.train import Interrupted


def main(recipe: AnyRun, *, out: Path, config: Path | None = None, dry_run: bool = False) -> None:
    """Train a recipe, or resume its run.

    Args:
        recipe: what to train; every setting can be overridden.
        out: folder of the run: checkpoints, losses, previews, the configuration and the final weights.
        config: YAML file of settings that override the recipe's; options override the file.
        dry_run: print all settings as a `--config` file, check them, the data and the folder, and train nothing.
    """
    if dry_run:
        print(as_file(recipe), end="", flush=True)
        preflight(recipe, out)
        return
    try:
        result = fit(recipe, out, progress=True)
    except Interrupted as interrupted:
        if rank_and_world_size()[0] == 0:
            print("tmatch: interrupted and saved; rerun the same command to resume.", file=sys.stderr)
        sys.exit(0 if interrupted.preempted else INTERRUPTED)
    if result:  # of several processes only the first returns one
        print(json.dumps(result, indent=2))
        print(f"tmatch: finished; the weights are in {str(out)!r}", file=sys.stderr)
