"""`tmatch export`."""

from pathlib import Path
from typing import Annotated

import tyro

from tmatch.hub import ENCODER_DTYPES, AlreadyPublic, EncoderDtype, upload
from tmatch.runs.export import export as write
from tmatch.runs.load import open_model


def export(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    dtype: EncoderDtype = "float16",
    push: str | None = None,
    private: bool = False,
) -> None:
    """Write a model as one folder: configuration, weights, a card, and the encoders that are only on this machine.

    Args:
        model: the folder of a run, finished or not, or the name of a model.
        out: a new folder.
        dtype: of the weights.
        push: also put it on the hub, under this owner/name.
        private: there, for nobody else to see.
    """
    write(open_model(model), out, ENCODER_DTYPES[dtype])
    print(f"{out} holds the model; tmatch generate 'a prompt' --model {out} draws with it.")
    if push is not None:
        try:
            print(upload(out, push, private))
        except AlreadyPublic:
            raise
        except ValueError as error:
            again = f"hf upload {push} {out}{' --private' if private else ''}"
            raise ValueError(f"{error} {out} is whole: `{again}` puts it there.") from error
