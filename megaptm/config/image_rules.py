"""What families that read images may not be told: each rule one sentence with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import CHANNELS
from megaptm.config.schema import Config, ModelConfig
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.images import ImageObjective
from megaptm.spec import ModelSpec

OF_TOKENS = ("embedding", "cutoffs")
"""Keys about a table of tokens, which such a family has not."""


def image_shape(model: ModelConfig, spec: ModelSpec) -> Iterator[str]:
    """Keys that mean nothing to a family that reads images, and patches that no image has."""
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
    """The objective cuts images into the patches that the model reads."""
    if spec.size.patch is None:  # told by `image_shape`
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
