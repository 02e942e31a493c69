"""The Hugging Face hub: options, download, upload, and fingerprints of pretrained networks."""

import hashlib
import json
import re
import socket
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import nn

from tmatch.config import MAX_LAYERS
from tmatch.extras import needs_extra
from tmatch.reading import contained, first_line, read_json, read_shapes, require_finite_weights

EncoderDtype = Literal["float32", "float16", "bfloat16"]
"""What pretrained encoders compute in, and weights and shards are stored in."""
ENCODER_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALLOWED_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md")
"""The files of a model that are transferred: weights, configuration and vocabulary; never code or pickles."""
NETWORK_FILES = [
    *(f"{stem}.safetensors{end}" for stem in ("model", "diffusion_pytorch_model") for end in ("", ".index.json")),
    "*-of-*.safetensors", "*config.json", "tokenizer.json", "*tokens*.json", "vocab.json", "*.txt", "*.model",
]  # fmt: skip
"""The files of a pretrained network and its tokenizer."""
CONFIG = "config.json"
_UNSUPPORTED = {"base_model_name_or_path", "quantization_config", "transformers_weights"}
_NAMING = re.compile(r"auto_map|init_inputs|num_labels|.*(_files?|_path|attn_implementation)")
_DEPTH = re.compile(r"(layer|block|depth)(?!.*channels)")


def fingerprint(network: nn.Module, extra: str = "") -> str:
    """SHA-256 of the names, types and bytes of all weights, and of an `extra` description."""
    total = hashlib.sha256(extra.encode())
    for name, tensor in sorted(network.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return total.hexdigest()


@dataclass(frozen=True)
class HubOptions:
    """Access to the hub; with `offline`, only the local cache is used. Local files are read only `within` a folder."""

    token: str | None = None
    offline: bool = False
    within: Path | None = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `from_pretrained` and `snapshot_download`."""
        return {"token": self.token, "local_files_only": self.offline}

    def is_local(self, path: Path) -> bool:
        """Whether a path exists and may be read."""
        return path.exists() and (self.within is None or path.resolve().is_relative_to(self.within.resolve()))


def require_path(name: str) -> None:
    """Reject a name that can only be a path, such as /nets/vae, ./vae or ~/vae, if it does not exist."""
    if (Path(name).is_absolute() or name.startswith(("./", "../", "~"))) and not Path(name).exists():
        raise ValueError(f"There is no folder {name}; check the path, or pass a name on the hub.")


@contextmanager
def loading(what: str, name: str, advice: str) -> Iterator[None]:
    """Turn the errors of other libraries, which are of many kinds, into one sentence with advice."""
    require_path(name)
    try:
        yield
    except Exception as error:
        if _unreachable(error):
            raise ValueError(
                f"The {what} '{name}' is not cached on this machine and the hub cannot be reached; check the network, "
                "HF_HUB_OFFLINE and local_files_only."
            ) from error
        raise ValueError(f"The {what} '{name}' cannot be loaded ({first_line(error)}); {advice}") from error


def require_weights(network: nn.Module, missing: Iterable[str]) -> None:
    """Reject a network whose files lack weights, or have weights that are not finite."""
    if names := sorted(missing):
        raise ValueError(f"its files are incomplete and lack {names[0]}")
    require_finite_weights(network.state_dict(), "it")


@contextmanager
def checked_folder(name: str, hub: HubOptions) -> Iterator[tuple[Path, int]]:
    """Yield a folder of links to the files of a pretrained network, and the number of its weights.

    Libraries open whatever a folder or its configuration names: pickles, adapters, files elsewhere. This folder has
    only safetensors and vocabularies, and its configuration names no other files.
    """
    from huggingface_hub import snapshot_download

    folder = Path(name)
    if not hub.is_local(folder):
        folder = Path(snapshot_download(name, allow_patterns=NETWORK_FILES, **hub.arguments()))
    known = [file for file in folder.iterdir() if any(fnmatch(file.name, pattern) for pattern in NETWORK_FILES)]
    files = {file.name: contained(file) for file in known}
    shapes = {name: read_shapes(file) for name, file in files.items() if name.endswith(".safetensors")}
    tensors = sum(map(len, shapes.values()))
    with TemporaryDirectory() as view:
        for name, file in files.items():
            if name.endswith(("config.json", "index.json")):
                Path(view, name).write_text(json.dumps(_checked(read_json(file), shapes, tensors)))
            else:
                Path(view, name).symlink_to(file)
        yield Path(view), sum(prod(shape) for part in shapes.values() for shape in part.values())


def read_network_config(name: str, hub: HubOptions) -> dict[str, Any]:
    """The config.json of a pretrained network by its hub name or folder; its weights are not downloaded."""
    from huggingface_hub import hf_hub_download

    folder = Path(name)
    if not hub.is_local(folder):
        folder = Path(hf_hub_download(name, CONFIG, **hub.arguments())).parent
    return checked_config(read_json(contained(folder / CONFIG)))


def checked_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that name files or code; it may have up to MAX_LAYERS layers."""
    checked: dict[str, Any] = _checked(config, {}, MAX_LAYERS)
    return checked


def _checked(value: Any, files: Container[str], tensors: int) -> Any:  # noqa: ANN401
    """A configuration or index without the keys that name files or code; each layer has at least one tensor."""
    if not isinstance(value, dict):
        return [_checked(part, files, tensors) for part in value] if isinstance(value, list) else value
    for key, part in value.items():
        if key in _UNSUPPORTED and part is not None:
            raise ValueError(f"{key} is not supported")
        if key == "weight_map" and (others := [file for file in part.values() if file not in files]):
            raise ValueError(f"its index names {others[0]}, which is not a safetensors file in its folder")
        for count in part if isinstance(part, list) else [part]:
            if _DEPTH.search(key) and isinstance(count, int) and count > tensors:
                raise ValueError(f"{key} is {count:,}, but there can be at most {tensors:,} layers")
    return {key: _checked(part, files, tensors) for key, part in value.items() if not _NAMING.fullmatch(key)}


def _unreachable(error: BaseException | None) -> bool:
    """Whether the network caused an error; libraries wrap it in their own."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while error is not None:
        if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def download(name: str, revision: str | None = None, hub: HubOptions = HubOptions()) -> Path:
    """A cached copy of a model on the hub."""
    with needs_extra(f"The hub model {name}", "t2i"):
        from huggingface_hub import snapshot_download
    with loading("hub model", name, "check its name."):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(ALLOWED_FILES), **hub.arguments()))


def upload(folder: Path, name: str, private: bool = False, token: str | None = None) -> str:
    """Upload a folder to the hub as `owner/name` and return its URL; never to a public repository if `private`."""
    with needs_extra(f"Uploading to {name}", "t2i"):
        from huggingface_hub import HfApi
    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if not private or api.model_info(name).private:
            return str(api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=list(ALLOWED_FILES)))
    except Exception as error:  # the hub's client raises errors of many kinds
        denied = getattr(getattr(error, "response", None), "status_code", None) in (401, 403)
        advice = "log in with `hf auth login`" if denied else "check the name and the network"
        raise ValueError(f"{name} could not be uploaded to the hub ({first_line(error)}); {advice}.") from error
    raise PermissionError(f"{name} exists on the hub and is public; make it private there, or use another name.")
