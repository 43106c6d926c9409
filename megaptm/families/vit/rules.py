"""Rules for families that read images. Each rule gives one message with its key."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import CHANNELS
from megaptm.config.schema import Config
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.images import ImageObjective
from megaptm.spec import ModelSpec


def image_model_errors(spec: ModelSpec) -> Iterator[str]:
    """Yield errors of a missing patch size, and of patches that do not form a square."""
    if spec.size.patch is None:
        yield f"model.size custom of {spec.family.name} needs model.patch, the side length of a patch in pixels."
    if spec.context < 2 or spec.grid**2 + 1 != spec.context:
        yield (
            f"model.context ({spec.context}) must be one more than a square, for the patches of an image and the image "
            f"itself: {max(spec.grid, 1) ** 2 + 1} or {(spec.grid + 1) ** 2 + 1}."
        )


def image_objective_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors if the objective's patches differ from the model's."""
    if spec.size.patch is None:  # reported by `image_model_errors`
        return
    sequence, patch = config.data.sequence, spec.size.patch
    if sequence != spec.context:
        yield f"data.sequence ({sequence}) must be model.context ({spec.context}): an image and its patches."
        return
    pixels = config.batch_spec.fields["patches"].shape[-1]
    shown = [task.objective for task in tasks_of(config.built_objective)]
    sides = [task.size for task in shown if isinstance(task, ImageObjective)]
    if pixels != CHANNELS * patch**2 or any(side != spec.grid * patch for side in sides):
        yield (
            f"objective ({config.built_objective.name}) makes other patches than model.patch ({patch}): its option "
            f"`size`, the side length of an image in pixels, must be {spec.grid * patch}."
        )
