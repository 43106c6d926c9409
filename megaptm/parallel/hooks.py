"""Engine hooks: parts of a training step that only some models or runs need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.models.loss import Loss
from megaptm.models.model import Model
from megaptm.models.output import ModelOutput
from megaptm.parallel.pipeline import Pipeline

if TYPE_CHECKING:
    from megaptm.parallel.initial import Initializer
    from megaptm.parallel.model import ParallelModel
    from megaptm.parallel.optimizers import Optimizer


class EngineHook:
    """Base class of engine hooks. Its methods do nothing; a hook overrides the ones that it needs.

    The engine calls every method on all ranks at the same point of the program.
    """

    def extend_model(self, model: Model) -> None:
        """Add modules to a pipeline chunk of the model, on the meta device, before it is divided over tensor ranks."""

    def attach(self, model: ParallelModel) -> None:
        """Called when the model of this rank is built, before its weights have values."""

    def model_initializer(self) -> Initializer | None:
        """Return a function that sets the initial weights of the model; None to leave them to other hooks."""
        return None

    def loss_weights(self, weights: dict[str, float]) -> dict[str, float]:
        """Return the weights of the losses, including those of `extra_losses`."""
        return weights

    def prepare_batch(self, batch: MicroBatch) -> MicroBatch:
        """Add fields to a micro-batch on the host, before tensor rank 0 sends it to the others."""
        return batch

    def count_labels(self, loss: str, batch: MicroBatch) -> Tensor | None:
        """Return the number of labels of a loss that this hook computes, an integer scalar; None for other losses."""
        return None

    @contextmanager
    def wrap_passes(
        self, pipeline: Pipeline, microbatches: list[MicroBatch], *, step: int | None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Wrap the forward and backward passes of a step. `step` is None in an evaluation.

        Yield loss -> sum over this rank's samples, for losses whose value the hook computes itself. An evaluation
        without other losses runs no pass. All ranks yield the same losses; ranks without the head yield 0.
        """
        yield {}

    def forward_arguments(self, chunk: int, batch: MicroBatch) -> dict[str, Any]:
        """Return keyword arguments of `Model.forward` for a pipeline chunk of this rank."""
        return {}

    def extra_losses(self, model: Model, batch: MicroBatch, output: ModelOutput) -> dict[str, Loss]:
        """Return losses of the last pipeline chunk, besides those of its heads."""
        return {}

    def after_forward(self, chunk: int) -> None:
        """Called after each forward pass of a pipeline chunk."""

    def before_update(self, optimizer: Optimizer, *, step: int, scale: float) -> None:
        """Called before the gradients of a training step are clipped; the loss scale has multiplied them by `scale`."""

    def after_step(self) -> None:
        """Called after an update or an evaluation. Not called after a rejected step."""

    def metrics(self) -> Mapping[str, float]:
        """Return numbers of the last training step for the metrics of the run, the same on all ranks."""
        return {}

    def pieces(self) -> Iterable[TensorPiece]:
        """Return the pieces of this hook's state that this rank writes to a checkpoint."""
        return ()

    def restore(self, reader: TensorReader) -> None:
        """Restore the state of this hook from a checkpoint of any layout."""
