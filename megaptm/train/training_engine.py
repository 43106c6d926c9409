"""What the loop and the checkpointer ask of an engine, whatever it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.parallel.groups import Ranks
from megaptm.parallel.step_result import StepResult


class TrainingEngine(Protocol):
    """A model on this process's place of a layout, with what moves its weights."""

    ranks: Ranks
    losses: dict[str, float]
    """Loss -> its weight."""

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Change the weights of the losses, from the next pass on."""

    def fill(self) -> None:
        """Begin with the initial weights, a function of the seed."""

    def step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Learn from this data rank's micro-batches; the same result on every process."""

    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        """Losses of micro-batches, without learning."""

    def pieces(self) -> Iterable[TensorPiece]:
        """What this process has to write of a checkpoint: each element of each tensor comes from one process."""

    def restore(self, reader: TensorReader, *, step: int) -> None:
        """Go on from a checkpoint of any layout, made after `step` steps."""
