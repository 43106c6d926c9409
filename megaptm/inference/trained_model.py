"""Trained model with its tokenizer on one device, for use without training. No megatron-core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.models.model import Model
from megaptm.objectives.objective import Prompt
from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.folder import CONFIG
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class TrainedModel:
    """Trained model with its tokenizer. `LoadedModel` adds its uses as methods."""

    folder: Path
    """Folder of the run, or of the exported model, that was loaded."""
    config: Config
    """Config of the run; for an exported model, the config of a run that imports it."""
    step: int
    """Training step of the model; 0 for an exported model."""
    model: Model
    """Model in evaluation mode, without gradients."""
    tokenizer: Tokenizer
    tokenizer_folder: Path
    newly_initialized: tuple[str, ...] = ()
    """Heads that an exported model does not have, which are untrained."""

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run, which knows its corpora, rather than an exported model."""
        return (self.folder / CONFIG).is_file()

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Kinds of prompts that the model accepts. An exported encoder-decoder may be trained for plain texts, which
        its folder does not tell."""
        prompts, has_decoder = self.config.built_objective.prompts, self.spec.family.last_block.cross is not None
        return (*dict.fromkeys((*prompts, "text")),) if has_decoder and not self.is_run else prompts

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def open_run(
    run: str | Path, *, step: int | None = None, device: str | torch.device | None = None, ema: bool = False
) -> TrainedModel:
    """Load the model that a run saved at `step` (None: last), in float32, on `device` (None: the GPU if there is
    one). `ema`: with the running means of its weights."""
    checkpoint = open_checkpoint(run, step=step, ema=ema)
    return TrainedModel(
        folder=checkpoint.run,
        config=checkpoint.config,
        step=checkpoint.step,
        model=_build_filled(checkpoint.spec, checkpoint.weights(), device, checkpoint.checkpoint.folder, run),
        tokenizer=load_tokenizer(checkpoint.tokenizer),
        tokenizer_folder=checkpoint.tokenizer,
    )


def open_exported(folder: str | Path, *, device: str | torch.device | None = None) -> TrainedModel:
    """Load a model in Hugging Face's format, in float32."""
    from megaptm.hub.import_run import complete_weights, default_config, read_imported_model

    folder = Path(folder)
    imported, tokenizer = read_imported_model(str(folder))
    if tokenizer is None:
        raise UserError(f"{folder} has no tokenizer.json: copy the model's tokenizer into the folder.")
    config = default_config(imported, folder)
    return TrainedModel(
        folder=folder,
        config=config,
        step=0,
        model=_build_filled(imported.spec, complete_weights(imported, seed=config.train.seed), device, folder, folder),
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        newly_initialized=imported.newly_initialized,
    )


def _build_filled(
    spec: ModelSpec, weights: Mapping[str, Tensor], device: str | torch.device | None, source: Path, run: str | Path
) -> Model:
    """Build a trained model with these weights, read from `source`, in evaluation mode."""
    with torch.device("meta"):
        model = Model(spec)
    # Compared before memory is allocated: a damaged config may ask for any amount.
    for name, parameter in model.named_parameters():
        weight = weights.get(name)
        if weight is None or weight.shape != parameter.shape:
            raise UserError(
                f"{source} has no {name} of shape {tuple(parameter.shape)}, so it is not a checkpoint of the model "
                f"in {Path(run) / CONFIG}: restore the config with which it was trained."
            )
    model.to_empty(device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval().requires_grad_(False)
