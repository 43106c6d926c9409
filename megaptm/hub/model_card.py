"""Push of an exported model to the Hugging Face hub, with a model card."""

from __future__ import annotations

from pathlib import Path

import yaml

from megaptm.config.yamls import YamlDumper
from megaptm.credentials import brief_message
from megaptm.errors import UserError, printable
from megaptm.hub.huggingface import ExportedModel
from megaptm.objectives.compose import map_files
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.run.compatibility import read_checkpoint_state
from megaptm.run.held_out import FIELD, HeldOutLoss

CARD = "README.md"
FIELDS = ("model", "objective", "optimizer")
"""Sections of the config that a model card shows, besides parts of `data`."""


def _last_part(path: str) -> str:
    return Path(path).name


def model_card(checkpoint: RunCheckpoint, exported: ExportedModel) -> str:
    """Return the model card of an exported checkpoint: what it is, how to load it, and how it was trained."""
    config, state = checkpoint.config, checkpoint.checkpoint.state
    title = f"{config.model.family} {config.model.size}"
    samples, held_out = state.get("samples"), HeldOutLoss()
    held_out.restore(read_checkpoint_state(checkpoint.checkpoint, FIELD))
    loss = held_out.losses.get("loss", {}).get(checkpoint.step)
    rows = {
        "step": f"{checkpoint.step:,}",
        "sequences": f"{samples:,}" if isinstance(samples, int) else "unknown",
        "sequence length": f"{config.data.sequence:,}",
        "validation loss": "not measured" if loss is None else f"{loss:.4f}",
        "precision": config.train.precision,
    }
    # Paths may tell about the author's machine: only the last part is shown.
    values = config.model_dump(mode="json", exclude_defaults=True)
    shown = {name: values[name] for name in FIELDS if name in values}
    shown["data"] = {
        "sequence": config.data.sequence,
        "mix": {_last_part(path): share for path, share in config.data.mix.items()},
    }
    if isinstance(objective := shown.get("objective"), dict):
        shown["objective"] = map_files(objective, _last_part)
    if config.model.word_vectors is not None:
        shown["model"]["word_vectors"] = _last_part(config.model.word_vectors)
    lines = [
        "---",
        yaml.safe_dump({"library_name": "transformers", "tags": ["megaptm", config.model.family]}).rstrip(),
        "---",
        "",
        f"# {title}",
        "",
        "Pre-trained with megaptm.",
        "",
        "```python",
        "import transformers",
        "",
        *(
            f'model = transformers.{name}.from_pretrained("."{"" if folder == "." else f", subfolder={folder!r}"})'
            for folder, name in exported.classes.items()
        ),
        "```",
        "",
        "| training | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        "```yaml",
        yaml.dump(shown, Dumper=YamlDumper, sort_keys=False, allow_unicode=True).rstrip(),
        "```",
        "",
    ]
    return "\n".join(printable(line) if line else "" for text in lines for line in text.split("\n"))


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
