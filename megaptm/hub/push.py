"""Push of an exported model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from megaptm.credentials import brief_message
from megaptm.errors import UserError


def push_folder(folder: Path, name: str, *, message: str) -> str:
    """Push a folder to a model of the hub, which is created as private if it does not exist; return its URL."""
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        repo = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(folder_path=folder, repo_id=repo.repo_id, commit_message=message)
    # The libraries raise dozens of types: name resolution, proxies, certificates, timeouts, status codes.
    except Exception as error:
        raise UserError(
            f"{folder} is exported, but cannot be pushed to {name} ({brief_message(error)}): check the network and the "
            f"login (`hf auth login`), and push it later with `hf upload {name} {folder}`."
        ) from None
    return str(repo)
