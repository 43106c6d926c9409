"""Interface of engines to the loop and the checkpointer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.parallel.groups import Ranks
from megaptm.parallel.step_result import StepResult


class TrainingEngine(Protocol):
    """Interface of an engine: the model of this rank in a layout, with its optimizer."""

    ranks: Ranks
    losses: dict[str, float]
    """Loss -> its weight in the sum that is trained."""

    def set_loss_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of the losses, starting with the next pass."""

    def fill(self) -> None:
        """Set the initial weights of the model, a function of the seed."""

    def train_step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train the model on this data rank's micro-batches; return the same result on every process."""

    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        """Return the losses of micro-batches, without training the model."""

    def pieces(self) -> Iterable[TensorPiece]:
        """Return the tensors of the engine that this process writes to a checkpoint; each element of each tensor comes
        from one process."""

    def restore(self, reader: TensorReader, *, step: int) -> None:
        """Restore the engine from a checkpoint of any layout, written after `step` steps."""
