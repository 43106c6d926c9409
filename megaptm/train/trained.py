"""A run's model, whole and on one device: for whoever uses it without training it. No processes, no megatron-core."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.models import Model, build_model
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer, load
from megaptm.train.prepare import CONFIG
from megaptm.train.snapshot import Snapshot, open_snapshot


@dataclass(frozen=True)
class Trained:
    """A model that has learned, with what it reads and writes by."""

    snapshot: Snapshot
    model: Model
    """In evaluation mode, without gradients."""
    tokenizer: Tokenizer

    @property
    def config(self) -> Config:
        return self.snapshot.config

    @property
    def spec(self) -> ModelSpec:
        return self.snapshot.spec

    @property
    def step(self) -> int:
        return self.snapshot.step

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def open_run(run: str | Path, *, step: int | None = None) -> Trained:
    """The model as saved at `step` (absent: last), in float32, on the GPU if there is one."""
    snapshot = open_snapshot(run, step=step)
    with torch.device("meta"):
        model = build_model(snapshot.spec)
    model.to_empty(device="cuda" if torch.cuda.is_available() else "cpu")
    weights = snapshot.weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = weights.get(name)
            if weight is None or weight.shape != parameter.shape:
                raise UserError(
                    f"{snapshot.checkpoint.folder} has no {name} of shape {tuple(parameter.shape)}: it is not of the "
                    f"model in {snapshot.run / CONFIG}; put back the config that it was made with."
                )
            parameter.copy_(weight)
    return Trained(snapshot, model.eval().requires_grad_(False), load(snapshot.tokenizer))
