"""Configs: YAML in, a typed and checked `Config` out. No torch."""

from megaptm.config.read import dump, load
from megaptm.config.schema import (
    Checkpoint,
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
    "Config",
    "Data",
    "Layout",
    "Model",
    "Optimizer",
    "Track",
    "Train",
    "dump",
    "load",
    "resolve_model",
]
