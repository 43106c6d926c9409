"""Rules for families that read image regions. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Config
from megaptm.objectives import BaseObjective
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.regions import RegionObjective
from megaptm.objectives.unified import TextBeforeRegions
from megaptm.spec import ModelSpec


def region_model_errors(spec: ModelSpec) -> Iterator[str]:
    """Yield an error if the detector is not described."""
    if spec.size.detector is None:
        yield f"model.size custom of {spec.family.name} needs model.detector, its numbers of features and classes."


def region_objective_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors unless all tasks read the model's detector output and have the same number of regions."""
    if spec.size.detector is None:  # reported by `region_model_errors`
        return
    parts = _parts(config.built_objective)
    for label, task in parts.items():
        where = f"objective ({label})"
        features, classes = spec.size.detector
        if isinstance(task, TextBeforeRegions):
            if task.features != features:
                yield (
                    f"{where} reads regions of {task.features} features, and model.detector has {features}: set its "
                    f"option `features` to {features}, or change model.detector."
                )
        elif (task.features, task.classes) != spec.size.detector:
            yield (
                f"{where} reads regions of {task.features} features and {task.classes} classes, and model.detector has "
                f"{features} and {classes}: set its options `features` and `classes`, or change model.detector."
            )
        if task.regions >= config.data.sequence:
            yield (
                f"{where} has {task.regions} image regions (`regions`), and data.sequence ({config.data.sequence}) "
                "leaves no position for text: raise it."
            )
    if len({task.regions for task in parts.values()}) > 1:
        numbers = ", ".join(f"{label} {task.regions}" for label, task in parts.items())
        yield f"objective: tasks have different numbers of image regions ({numbers}): set `regions` to one value."


def _parts(objective: BaseObjective) -> dict[str, RegionObjective | TextBeforeRegions]:
    objectives = {task.label or objective.name: task.objective for task in tasks_of(objective)}
    return {label: task for label, task in objectives.items() if isinstance(task, RegionObjective | TextBeforeRegions)}
