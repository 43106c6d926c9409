"""Interface of training engines for the training loop and the checkpointer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.parallel.groups import Ranks
from megaptm.parallel.step_result import StepResult


class TrainingEngine(Protocol):
    """Interface of a training engine: the model of this rank in a layout, with its optimizer."""

    ranks: Ranks
    losses: dict[str, float]
    """Weight of each loss in the sum that training minimizes."""

    def set_loss_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of the losses, starting with the next forward pass."""

    def init_weights(self) -> None:
        """Set the initial weights of the model, a function of the seed."""

    def train_step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train the model for one step on this data rank's micro-batches; return the same result on every process."""

    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        """Return the losses of micro-batches without training the model."""

    def check_replicas(self) -> None:
        """Raise ReplicaError on every process if ranks that hold the same weights differ."""

    def pieces(self) -> Iterable[TensorPiece]:
        """Return the pieces of the model and optimizer that this rank writes to a checkpoint; each element of each
        tensor comes from one rank."""

    def restore(self, reader: TensorReader, *, step: int) -> None:
        """Restore model and optimizer from a checkpoint of any layout, written after `step` steps."""
