"""Checkpoint of a run for commands that do not train: config, complete weights, tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorReader
from megaptm.config import Config, load_run_config, resolve_model
from megaptm.errors import UserError
from megaptm.run.folder import CONFIG, require_run
from megaptm.run.saved_model import with_saved_attention
from megaptm.spec import ModelSpec

PREFIX, EMA_PREFIX = "weight/", "ema/"


@dataclass(frozen=True)
class RunCheckpoint:
    """Verified checkpoint of a run."""

    run: Path
    config: Config
    checkpoint: Checkpoint
    ema: bool = False
    """Whether `weights` are the running means of the weights."""

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @cached_property
    def spec(self) -> ModelSpec:
        return resolve_model(self.config)

    @property
    def tokenizer(self) -> Path:
        """Return the folder of the run's tokenizer."""
        return self.run / "tokenizer"

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights of a checkpoint: fp32 parameters by global name, each read on access."""
        return _Weights(self.checkpoint.reader, ema=self.ema)

    def mean_weights(self, number: int) -> Mapping[str, Tensor]:
        """Return the mean of the weights of this checkpoint and of the `number` - 1 before it, as in the evaluation of
        the Transformer."""
        store = CheckpointStore(self.run)
        steps = [step for step in store.steps() if step <= self.step][:number]
        if len(steps) < number:
            raise UserError(
                f"{self.run} has {len(steps)} checkpoints up to step {self.step}, not {number}: average fewer, or "
                "retain more of them (checkpoint.keep)."
            )
        earlier = [store.load(step) for step in steps[1:]]
        for checkpoint in earlier:
            checkpoint.verify()
            if self.ema:
                _require_means(self.run, checkpoint)
        return _Mean([self.weights(), *(_Weights(checkpoint.reader, ema=self.ema) for checkpoint in earlier)])


class _Weights(Mapping[str, Tensor]):
    def __init__(self, reader: TensorReader, *, ema: bool) -> None:
        self._reader = reader
        means = (name.removeprefix(EMA_PREFIX) for name in reader.names() if name.startswith(EMA_PREFIX))
        self._means = {*means} if ema else set()
        self._names = [name.removeprefix(PREFIX) for name in reader.names() if name.startswith(PREFIX)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        # Weights that are not trained have no mean.
        return self._reader.read((EMA_PREFIX if name in self._means else PREFIX) + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Mean(Mapping[str, Tensor]):
    """Element-wise mean of the weights of several checkpoints."""

    def __init__(self, all_weights: Sequence[Mapping[str, Tensor]]) -> None:
        self._all = all_weights

    def __getitem__(self, name: str) -> Tensor:
        first, *remaining = self._all
        total = first[name].clone()
        for weights in remaining:
            total += weights[name]
        return total / len(self._all)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all[0])

    def __len__(self) -> int:
        return len(self._all[0])


def open_checkpoint(run: str | Path, *, step: int | None = None, ema: bool = False) -> RunCheckpoint:
    """Open the checkpoint of a run at `step`, or by default the newest one that is undamaged. `ema`: with the running
    means of the weights."""
    run = Path(run)
    require_run(run)
    store = CheckpointStore(run)
    checkpoint = store.newest() if step is None else store.load(step)
    if checkpoint is None:
        raise UserError(f"{run} has no checkpoint yet: continue it with `megaptm train {run}`.")
    if step is not None:
        checkpoint.verify()
    if ema:
        _require_means(run, checkpoint)
    config = with_saved_attention(load_run_config(run / CONFIG), checkpoint.state, checkpoint.folder)
    return RunCheckpoint(run, config, checkpoint, ema)


def _require_means(run: Path, checkpoint: Checkpoint) -> None:
    """Raise UserError unless a checkpoint has the running means of the weights."""
    if not any(name.startswith(EMA_PREFIX) for name in checkpoint.reader.names()):
        raise UserError(
            f"the checkpoint of step {checkpoint.step} of {run} has no running mean of the weights (--ema): it was "
            "trained without optimizer.ema_decay. Leave out --ema, or average checkpoints (export hf --average)."
        )
