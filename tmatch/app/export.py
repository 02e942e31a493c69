"""`tmatch export`."""

from pathlib import Path
from typing import Annotated

import tyro

from tmatch.generation.inputs import example
from tmatch.hub import ENCODER_DTYPES, EncoderDtype, upload
from tmatch.runs import load_model
from tmatch.runs.export import export


def main(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    dtype: EncoderDtype = "float16",
    push: str | None = None,
    private: bool = False,
) -> None:
    """Write a model to one folder: configuration, weights, a model card, and encoders that exist only locally.

    Args:
        model: folder of a run, finished or not, or name of a model.
        out: a new folder.
        dtype: data type of the weights.
        push: also upload it to the Hub as owner/name.
        private: make the Hub repository private.
    """
    loaded = load_model(model)
    export(loaded, out, ENCODER_DTYPES[dtype])
    command = f"tmatch generate {example(loaded.pipeline.encoder)[0]}".rstrip()
    print(f"wrote {out}; use it with: {command} --model {out}")
    if push is None:
        return
    try:
        print(upload(out, push, private))
    except ValueError as error:
        retry = f"hf upload {push} {out}{' --private' if private else ''}"
        raise ValueError(f"{error} The export in {out} is complete; to retry the upload, run `{retry}`.") from error
