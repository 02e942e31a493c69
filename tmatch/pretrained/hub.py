"""Models on the hub."""

from pathlib import Path

from tmatch.pretrained.identity import extra, first_line

READ = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md")
"""What is read of a model: weights, settings and words; never code, never pickles."""


def download(name: str, revision: str | None = None, token: str | None = None, offline: bool = False) -> Path:
    """A copy of a model on the hub, kept for the next time; `offline` takes that copy and asks nobody."""
    with extra(f"The model {name} of the hub"):
        from huggingface_hub import snapshot_download
    try:
        folder = snapshot_download(
            name, revision=revision, token=token, allow_patterns=list(READ), local_files_only=offline
        )
    except Exception as error:  # what goes wrong on the way to the hub is of many kinds
        reason = first_line(error)
        raise ValueError(f"There is no model '{name}' of the hub to be had ({reason}); is it spelt right?") from error
    return Path(folder)


def upload(folder: Path, name: str, private: bool = False, token: str | None = None) -> str:
    """Put a folder on the hub, as `owner/name`; where it is then."""
    with extra(f"Uploading to {name}"):
        from huggingface_hub import HfApi
    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=list(READ)))
    except Exception as error:  # what goes wrong on the way to the hub is of many kinds
        refused = getattr(getattr(error, "response", None), "status_code", None) in (401, 403)
        advice = "log in with `hf auth login`" if refused else "see to its name and to the network"
        raise ValueError(f"{name} could not be put on the hub ({first_line(error)}); {advice}.") from error
