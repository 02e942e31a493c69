"""Models on the hub."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""What encoders may compute in, and shards be written in."""
Precision = Literal["float32", "float16", "bfloat16"]


def digest(network: nn.Module, besides: str = "") -> str:
    """SHA-256 of the names, types and bytes of all weights, and of what else there is to know of a network."""
    total = hashlib.sha256(besides.encode())
    for name, tensor in sorted(network.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return total.hexdigest()


def first_line(error: Exception, line: int = 0) -> str:
    """What an error says, without its explanations; or another of its lines."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[min(line, len(lines) - 1)].strip().rstrip(".")


class MissingExtra(ValueError):
    """An extra of the package is not installed."""


@contextmanager
def extra(what: str) -> Iterator[None]:
    """Say which extra of the package to install where an import fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f'{what} needs {error.name}: pip install "tmatch[t2i]".') from error


READ = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md")
"""What is read of a model: weights, settings and words; never code, never pickles."""


@dataclass(frozen=True)
class HubOptions:
    """As whom the hub is asked; `offline` takes the copy of the last time and asks nobody."""

    token: str | None = None
    offline: bool = False

    def arguments(self) -> dict[str, Any]:
        """What the libraries of the hub call it."""
        return {"token": self.token, "local_files_only": self.offline}


def require_there(what: str, name: str) -> None:
    """Refuse a name that can only be a path, as /nets/vae, ./vae and ~/vae are, where nothing is there."""
    if (Path(name).is_absolute() or name.startswith(("./", "../", "~"))) and not Path(name).exists():
        raise ValueError(f"There is no folder {name}; give the folder of {what}, or the name of one on the hub.")


def unavailable(what: str, error: Exception, advice: str) -> ValueError:
    """That something cannot be had: for the hub cannot be reached, or for what its library says, with `advice`."""
    if _unreachable(error):
        return ValueError(
            f"There is no {what} on this machine, and the hub cannot be reached, or was not to be; see to the network, "
            "HF_HUB_OFFLINE and local_files_only."
        )
    return ValueError(f"There is no {what} to be had ({first_line(error)}); {advice}")


def _unreachable(error: BaseException | None) -> bool:
    """Whether the network is behind an error, which libraries wrap in others."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while error is not None:
        if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def download(name: str, revision: str | None = None, hub: HubOptions = HubOptions()) -> Path:
    """A copy of a model on the hub, kept for the next time."""
    with extra(f"The model {name} of the hub"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(READ), **hub.arguments()))
    except Exception as error:  # what goes wrong on the way to the hub is of many kinds
        raise unavailable(f"model '{name}' of the hub", error, "is it spelt right?") from error


class AlreadyPublic(ValueError):
    """What was to be for nobody else to see would be for all."""


def upload(folder: Path, name: str, private: bool = False, token: str | None = None) -> str:
    """Put a folder on the hub, as `owner/name`; where it is then.

    What is there already stays as public as it is, so a `private` model is not put where all could see it.
    """
    with extra(f"Uploading to {name}"):
        from huggingface_hub import HfApi
    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if private and not api.model_info(name).private:
            raise AlreadyPublic(f"{name} is on the hub already, and public; make it private there, or give a new name.")
        return str(api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=list(READ)))
    except AlreadyPublic:
        raise
    except Exception as error:  # what goes wrong on the way to the hub is of many kinds
        refused = getattr(getattr(error, "response", None), "status_code", None) in (401, 403)
        advice = "log in with `hf auth login`" if refused else "see to its name and to the network"
        raise ValueError(f"{name} could not be put on the hub ({first_line(error)}); {advice}.") from error
