"""A run's model, whole and on one device: for whoever uses it without training it. No processes, no megatron-core."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.models import Model, build_model
from megaptm.run.checkpoint import RunCheckpoint, open_checkpoint
from megaptm.run.folder import CONFIG
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer, load


@dataclass(frozen=True)
class LoadedModel:
    """A model that has learned, with what it reads and writes by."""

    checkpoint: RunCheckpoint
    model: Model
    """In evaluation mode, without gradients."""
    tokenizer: Tokenizer

    @property
    def config(self) -> Config:
        return self.checkpoint.config

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def open_run(run: str | Path, *, step: int | None = None) -> LoadedModel:
    """The model as saved at `step` (absent: last), in float32, on the GPU if there is one."""
    checkpoint = open_checkpoint(run, step=step)
    with torch.device("meta"):
        model = build_model(checkpoint.spec)
    model.to_empty(device="cuda" if torch.cuda.is_available() else "cpu")
    weights = checkpoint.weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = weights.get(name)
            if weight is None or weight.shape != parameter.shape:
                raise UserError(
                    f"{checkpoint.checkpoint.folder} has no {name} of shape {tuple(parameter.shape)}: it is not of the "
                    f"model in {checkpoint.run / CONFIG}; put back the config that it was made with."
                )
            parameter.copy_(weight)
    return LoadedModel(checkpoint, model.eval().requires_grad_(False), load(checkpoint.tokenizer))
