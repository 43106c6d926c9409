"""Rules for families that read image regions. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Config, ModelConfig
from megaptm.objectives import BaseObjective
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.regions import RegionObjective
from megaptm.objectives.unified import TextBeforeRegions
from megaptm.spec import ModelSpec

OF_TABLES = ("embedding", "cutoffs")
"""Keys of tables whose width differs from the residual stream, with which regions cannot be combined."""


def region_shape(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of unused and missing keys."""
    family = spec.family
    for key in OF_TABLES:
        if getattr(model, key):
            yield f"model.{key} means nothing to {family.name}, which reads regions of images; remove it."
    if spec.size.detector is None:
        yield (
            f"model.size custom of {family.name} needs model.detector, the numbers of a region's features and the "
            "classes of its detector."
        )


def region_objective(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors unless all tasks read the model's detector output and have the same number of regions."""
    if spec.size.detector is None:  # reported by `region_shape`
        return
    parts = _parts(config.built_objective)
    for label, task in parts.items():
        where = f"objective ({label})"
        features, classes = spec.size.detector
        if isinstance(task, TextBeforeRegions):
            if task.features != features:
                yield (
                    f"{where} has places for regions of {task.features} features, and model.detector says {features}: "
                    "give its option `features` this, or change that."
                )
        elif (task.features, task.classes) != spec.size.detector:
            yield (
                f"{where} reads regions of {task.features} features and {task.classes} classes, and model.detector "
                f"says {features} and {classes}: give its options `features` and `classes` these, or change that."
            )
        if task.regions >= config.data.sequence:
            yield (
                f"{where} has places for {task.regions} regions (`regions`), and data.sequence "
                f"({config.data.sequence}) leaves none for a text: make it longer."
            )
    if len({task.regions for task in parts.values()}) > 1:
        told = ", ".join(f"{label} {task.regions}" for label, task in parts.items())
        yield f"objective: tasks have places for different numbers of regions ({told}): give `regions` one value."


def _parts(objective: BaseObjective) -> dict[str, RegionObjective | TextBeforeRegions]:
    found = {task.label or objective.name: task.objective for task in tasks_of(objective)}
    return {label: task for label, task in found.items() if isinstance(task, RegionObjective | TextBeforeRegions)}
