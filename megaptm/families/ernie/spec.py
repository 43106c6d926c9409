"""Task ids (ERNIE 2.0, arXiv:1907.12412)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from megaptm.spec import InputSpec, ModelSpec


@dataclass(frozen=True, kw_only=True)
class TaskInput(InputSpec):
    """Input of ERNIE's task ids: each sequence has one."""

    name = "task"
    costs = "megaptm.models.embed_costs:TableCosts"
    module = "megaptm.families.ernie.tasks:TaskTable"
    sample_fields = ("task_ids",)
    options = MappingProxyType({"tasks": "rows"})
    absence = "reads no task ids, unlike ernie-2"

    rows: int
    """Number of task ids."""

    def config_errors(self, config: Any, spec: ModelSpec) -> Iterator[str]:
        from megaptm.objectives.composed import objective_tasks

        for task in objective_tasks(config.built_objective):
            if task.task_id is not None and task.task_id >= self.rows:
                yield (
                    f"objective.{task.label}.task_id ({task.task_id}) must be less than the {self.rows} task ids of "
                    f"{spec.name}; or set model.tasks={task.task_id + 1}."
                )
