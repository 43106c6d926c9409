"""Download of a model from the Hugging Face hub, if a name is given instead of a folder."""

from __future__ import annotations

import re
from pathlib import Path

from megaptm.credentials import brief_message
from megaptm.errors import UserError
from megaptm.hub.tokenizer import SLOW_FILES

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""Pattern of names on the Hugging Face hub such as `gpt2` and `google-bert/bert-base-uncased`."""
FILE_PATTERNS = (
    *("config.json", "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *(*SLOW_FILES, "merges.txt"),
    *("preprocessor_config.json", "processor_config.json"),
)
TIMEOUT_SECONDS = 10.0


def find_or_download(source: str) -> Path:
    """Return the folder `source` of a Hugging Face model; if it does not exist and may be a name on the hub, download
    that model."""
    folder = Path(source)
    if folder.exists() or not NAME.fullmatch(source):
        return folder
    # If a folder `exported` exists here, exported/gpt2 means a folder.
    if "/" in source and folder.parent.exists():
        return folder
    return _download_snapshot(source)


def _download_snapshot(name: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    absent = f"{name} is not a folder here, and "
    try:
        # Queried once first: the download of a missing model would be retried many times.
        revision = HfApi().model_info(name, timeout=TIMEOUT_SECONDS).sha
    except RepositoryNotFoundError:
        raise UserError(
            f"{absent}the Hugging Face hub has no public model of that name: correct the path or the name, or log in "
            "with `hf auth login` if the model is private."
        ) from None
    # The libraries raise dozens of types: name resolution, proxies, certificates, timeouts, status codes.
    except Exception as error:
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError:
            raise UserError(
                f"{absent}the Hugging Face hub cannot be reached ({brief_message(error)}): correct the path, or "
                f"download the model on a machine with network access (`hf download {name}`) and give its folder."
            ) from None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILE_PATTERNS)))
    except Exception as error:  # not an earlier copy, which may be another version or incomplete
        raise UserError(
            f"{name} was not completely downloaded from the Hugging Face hub ({brief_message(error)}): start again; "
            "the files that are here are not downloaded again."
        ) from None
