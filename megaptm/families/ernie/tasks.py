"""Embedding of task ids."""

# S sequence, B batch, D width

from __future__ import annotations

from torch import Tensor

from megaptm.families.ernie.spec import TaskInput
from megaptm.layers.split import Embedding
from megaptm.spec import ModelSpec


class TaskTable(Embedding):
    """Embedding table of task ids [tasks, D], which is added at each position."""

    def __init__(self, spec: ModelSpec, record: TaskInput) -> None:
        super().__init__(record.rows, spec.size.table_width)

    def forward(self, task_ids_B: Tensor | None, ids_SB: Tensor) -> Tensor:  # type: ignore[override]
        """Return ERNIE 2.0's embedding of each sequence's task id, [B, D]. Without task ids all sequences have id 0."""
        return super().forward(ids_SB.new_zeros(ids_SB.shape[1]) if task_ids_B is None else task_ids_B)
