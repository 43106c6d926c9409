"""A model from the Hugging Face hub, for whoever gives its name in the place of a folder."""

from __future__ import annotations

import re
from pathlib import Path

from megaptm.credentials import in_brief
from megaptm.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""`gpt2`, `google-bert/bert-base-uncased`."""
PATTERNS = (
    *("config.json", "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "spiece.model"),
    *("preprocessor_config.json", "processor_config.json"),
)
ANSWER_SECONDS = 10.0


def model_folder(source: str) -> Path:
    """The folder that `source` is; or, where there is none and it can be a name on the hub, one fetched from there."""
    folder = Path(source)
    if folder.exists() or not NAME.fullmatch(source):
        return folder
    # exported/gpt2, in a folder `exported` that is here, is meant as a folder.
    if "/" in source and folder.parent.exists():
        return folder
    return _fetched(source)


def _fetched(name: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    absent = f"{name} is not a folder here, and "
    try:
        # Asked once: a download of a model that is not there would be tried again and again.
        revision = HfApi().model_info(name, timeout=ANSWER_SECONDS).sha
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(PATTERNS)))
    except RepositoryNotFoundError:
        raise UserError(
            f"{absent}the Hugging Face hub shows no model of that name: correct the path or the name, or log in with "
            "`hf auth login` where the model is private."
        ) from None
    # The libraries below raise dozens of kinds: name resolution, proxies, certificates, time, status codes.
    except Exception as error:
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError:
            raise UserError(
                f"{absent}the Hugging Face hub cannot be asked for it ({in_brief(error)}): correct the path, or "
                f"fetch the model where there is a network (`hf download {name}`) and give its folder."
            ) from None
