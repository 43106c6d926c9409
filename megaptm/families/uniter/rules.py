"""Config rules of models that read image regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megaptm.config.schema import Config
from megaptm.families.uniter.costs import detector_sizes
from megaptm.objectives import BaseObjective
from megaptm.objectives.composed import objective_tasks
from megaptm.spec import ModelSpec


def region_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors unless all tasks read the model's detector output and have the same number of regions."""
    if "detector" not in spec.size.inputs:
        return
    parts = _region_tasks(config.built_objective)
    for label, task in parts.items():
        where = f"objective ({label})"
        features, classes = detector_sizes(spec)
        if not hasattr(task, "classes"):  # a text alone
            if task.features != features:
                yield (
                    f"{where} reads regions of {task.features} features, and model.detector has {features}: set "
                    f"its option `features` to {features}, or change model.detector."
                )
        elif (task.features, task.classes) != (features, classes):
            yield (
                f"{where} reads regions of {task.features} features and {task.classes} classes, and model.detector "
                f"has {features} and {classes}: set its options `features` and `classes`, or change model.detector."
            )
        if task.regions >= config.data.sequence:
            yield (
                f"{where} has {task.regions} image regions (`regions`), and data.sequence ({config.data.sequence}) "
                "leaves no position for text: raise it."
            )
    if len({task.regions for task in parts.values()}) > 1:
        numbers = ", ".join(f"{label} {task.regions}" for label, task in parts.items())
        yield f"objective: tasks have different numbers of image regions ({numbers}): set `regions` to one value."


def _region_tasks(objective: BaseObjective) -> dict[str, Any]:
    objectives = {task.label or objective.name: task.objective for task in objective_tasks(objective)}
    return {label: task for label, task in objectives.items() if hasattr(task, "regions")}
