"""Key of the section `model` for models with task ids."""

from __future__ import annotations

from megaptm.section import Count, Section


class TaskKeys(Section):
    """Key of task ids in the section `model`."""

    tasks: Count | None = None
    """Number of task ids, for families with a task table. Default: from the paper."""


MODEL_KEYS = TaskKeys
