"""Config rules of task ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from megaptm.config.family_rules import FamilyRules
from megaptm.config.schema import Config
from megaptm.families.ernie.spec import TaskInput
from megaptm.objectives.composed import tasks_of
from megaptm.spec import ModelSpec


class TaskRules(FamilyRules):
    """Rules of the task table."""

    def unused_keys(self, spec: ModelSpec) -> Iterator[tuple[Collection[str], str]]:
        if spec.family.find_input(TaskInput) is None:
            yield ("tasks",), "reads no task ids, unlike ernie-2"

    def config_errors(self, config: Config, spec: ModelSpec) -> Iterator[str]:
        if (record := spec.family.find_input(TaskInput)) is None:
            return
        for task in tasks_of(config.built_objective):
            if task.task_id is not None and task.task_id >= record.rows:
                yield (
                    f"objective.{task.label}.task_id ({task.task_id}) must be less than the {record.rows} task ids of "
                    f"{spec.family.name}; or set model.tasks={task.task_id + 1}."
                )


RULES = TaskRules()
