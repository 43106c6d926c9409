"""Model of a run as one of its checkpoints was trained. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.checkpoint.committed import find_committed, read_state
from megaptm.config import Config, load_run_config
from megaptm.config.check import model_errors
from megaptm.errors import UserError
from megaptm.plugins import named_modules

CONFIG = "config.yaml"


def with_saved_attention(config: Config, state: Mapping[str, Any], folder: Path) -> Config:
    """Return the config of a run with the options of attention in the state of a checkpoint: a later phase may change
    them, such as the base of rotary positions."""
    saved = state.get("config")
    model = saved.get("model") if isinstance(saved, dict) else None
    attention = model.get("attention") if isinstance(model, dict) else None
    if not isinstance(attention, dict) or any(named_modules(attention)):  # code is named by the config alone
        return config
    changed = config.model.model_copy(update={"attention": attention})
    for error in model_errors(changed):
        raise UserError(f"{folder}: its config is damaged: {error}")
    return config.model_copy(update={"model": changed})


def saved_config(run: Path, step: int | None) -> Config:
    """Return the config of a run with the options of attention of the checkpoint at `step` (None: the newest), if there
    is one."""
    config, folders = load_run_config(run / CONFIG), find_committed(run)
    folder = folders.get(max(folders, default=0) if step is None else step)
    return config if folder is None else with_saved_attention(config, read_state(folder), folder)
