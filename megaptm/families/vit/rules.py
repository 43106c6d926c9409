"""Config rules of objectives of models that read images."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Config
from megaptm.families.vit.objectives import ImageObjective
from megaptm.families.vit.spec import CHANNELS, patch_side, patches_per_side
from megaptm.objectives.composed import objective_tasks
from megaptm.spec import ModelSpec


def image_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors if the objective's patches differ from the model's."""
    if "patch" not in spec.size.inputs:
        return
    sequence, patch = config.data.sequence, patch_side(spec)
    if sequence != spec.context:
        yield f"data.sequence ({sequence}) must be model.context ({spec.context}): an image and its patches."
        return
    pixels = config.batch_spec.fields["patches"].shape[-1]
    shown = [task.objective for task in objective_tasks(config.built_objective)]
    sides = [task.size for task in shown if isinstance(task, ImageObjective)]
    side = patches_per_side(spec) * patch
    if pixels != CHANNELS * patch**2 or any(other != side for other in sides):
        yield (
            f"objective ({config.built_objective.name}) makes other patches than model.patch ({patch}): its option "
            f"`size`, the side length of an image in pixels, must be {side}."
        )
