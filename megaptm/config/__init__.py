"""Configs: YAML in, a typed and checked `Config` out. No torch."""

from megaptm.config.read import Draft, Written, draft, dump, load, offered
from megaptm.config.schema import (
    Checkpoint,
    Communication,
    Config,
    Data,
    Layout,
    Model,
    Optimizer,
    Track,
    Train,
    resolve_model,
)

__all__ = [
    "Checkpoint",
    "Communication",
    "Config",
    "Data",
    "Draft",
    "Layout",
    "Model",
    "Optimizer",
    "Track",
    "Train",
    "Written",
    "draft",
    "dump",
    "load",
    "offered",
    "resolve_model",
]
