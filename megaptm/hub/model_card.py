"""Model card of an exported checkpoint, in its folder and on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from megaptm.config.yamls import YamlDumper
from megaptm.errors import printable
from megaptm.objectives.compose import map_files
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.run.compatibility import read_checkpoint_state
from megaptm.run.held_out import FIELD, HeldOutLoss

FIELDS = ("model", "objective", "optimizer")
"""Sections of the config that a model card shows, besides parts of `data`."""


def _last_part(path: str) -> str:
    return Path(path).name


def model_card(checkpoint: RunCheckpoint, classes: Mapping[str, str], *, average: int = 1) -> str:
    """Return the model card of an exported checkpoint: what it is, how to load it, and how it was trained.

    `classes`: names of the classes of `transformers` by subfolder. `average`: number of checkpoints whose mean weights
    are exported.
    """
    config, state = checkpoint.config, checkpoint.checkpoint.state
    title = f"{config.model.family} {config.model.size}"
    samples, held_out = state.get("samples"), HeldOutLoss()
    held_out.restore(read_checkpoint_state(checkpoint.checkpoint, FIELD))
    means = [f"mean of {average} checkpoints up to this step"] if average > 1 else []
    means += ["running mean (optimizer.ema_decay)"] if checkpoint.ema else []
    # A validation in training measures the weights of its step.
    loss = None if means else held_out.losses.get("loss", {}).get(checkpoint.step)
    rows = {
        "step": f"{checkpoint.step:,}",
        **({"weights": ", ".join(means)} if means else {}),
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
        "Pre-trained with megaptm." if checkpoint.step else "Exported by megaptm before its first step.",
        "",
        "```python",
        "import transformers",
        "",
        *(
            f'model = transformers.{name}.from_pretrained("."{"" if folder == "." else f", subfolder={folder!r}"})'
            for folder, name in classes.items()
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
