"""Task ids (ERNIE 2.0, arXiv:1907.12412)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from megaptm.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class TaskInput(InputSpec):
    """Task table: each sequence has one task id."""

    name = "task"
    costs = "megaptm.models.embed_costs:TableCosts"
    module = "megaptm.families.ernie.tasks:TaskTable"
    sample_fields = ("task_ids",)
    options = MappingProxyType({"tasks": "rows"})

    rows: int
    """Number of task ids."""
