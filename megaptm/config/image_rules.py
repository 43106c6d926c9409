"""Rules for families that read images. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import CHANNELS
from megaptm.config.schema import Config, ModelConfig
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.images import ImageObjective
from megaptm.spec import ModelSpec

OF_TOKENS = ("embedding", "cutoffs")
"""Keys of a token table, which these families lack."""


def image_shape(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of unused keys, and of patches that do not form a square."""
    family = spec.family
    for key in OF_TOKENS:
        if getattr(model, key):
            yield f"model.{key} means nothing to {family.name}, which reads images; remove it."
    if spec.size.patch is None:
        yield f"model.size custom of {family.name} needs model.patch, the pixels of a side of a patch."
    if spec.context < 2 or spec.grid**2 + 1 != spec.context:
        yield (
            f"model.context ({spec.context}) must be one more than a square, for the patches of an image and itself: "
            f"{max(spec.grid, 1) ** 2 + 1} or {(spec.grid + 1) ** 2 + 1}."
        )


def image_objective(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors if the objective's patches differ from the model's."""
    if spec.size.patch is None:  # reported by `image_shape`
        return
    sequence, patch = config.data.sequence, spec.size.patch
    if sequence != spec.context:
        yield f"data.sequence ({sequence}) must be the {spec.context} of model.context: an image and its patches."
        return
    pixels = config.built_objective.batch(sequence, config.data.document_mask).fields["patches"].shape[-1]
    shown = [task.objective for task in tasks_of(config.built_objective)]
    sides = [task.size for task in shown if isinstance(task, ImageObjective)]
    if pixels != CHANNELS * patch**2 or any(side != spec.grid * patch for side in sides):
        yield (
            f"objective ({config.built_objective.name}) shows other patches than model.patch ({patch}): its option "
            f"`size`, the pixels of a side of an image, must be {spec.grid * patch}."
        )
