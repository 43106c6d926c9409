"""Config rules of models that read images."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from megaptm.config.family_rules import FamilyRules
from megaptm.config.schema import Config
from megaptm.families.vit.objectives import ImageObjective
from megaptm.families.vit.spec import CHANNELS, PatchInput, grid_of, patch_side
from megaptm.objectives.composed import tasks_of
from megaptm.spec import ModelSpec


class ImageRules(FamilyRules):
    """Rules of patches: their size, their number, and the objective's images."""

    def unused_keys(self, spec: ModelSpec) -> Iterator[tuple[Collection[str], str]]:
        if spec.family.find_input(PatchInput) is None:
            yield ("patch", "pixel_mean", "pixel_std"), "reads no images"
        else:
            yield ("embedding", "cutoffs"), "reads images"

    def model_errors(self, spec: ModelSpec) -> Iterator[str]:
        if spec.family.find_input(PatchInput) is None:
            return
        if "patch" not in spec.size.inputs:
            yield f"model.size custom of {spec.family.name} needs model.patch, the side length of a patch in pixels."
        grid = grid_of(spec)
        if spec.context < 2 or grid**2 + 1 != spec.context:
            yield (
                f"model.context ({spec.context}) must be one more than a square, for the patches of an image and the "
                f"image itself: {max(grid, 1) ** 2 + 1} or {(grid + 1) ** 2 + 1}."
            )

    def config_errors(self, config: Config, spec: ModelSpec) -> Iterator[str]:
        """Yield errors if the objective's patches differ from the model's."""
        if spec.family.find_input(PatchInput) is None or "patch" not in spec.size.inputs:
            return
        sequence, patch = config.data.sequence, patch_side(spec)
        if sequence != spec.context:
            yield f"data.sequence ({sequence}) must be model.context ({spec.context}): an image and its patches."
            return
        pixels = config.batch_spec.fields["patches"].shape[-1]
        shown = [task.objective for task in tasks_of(config.built_objective)]
        sides = [task.size for task in shown if isinstance(task, ImageObjective)]
        side = grid_of(spec) * patch
        if pixels != CHANNELS * patch**2 or any(other != side for other in sides):
            yield (
                f"objective ({config.built_objective.name}) makes other patches than model.patch ({patch}): its option "
                f"`size`, the side length of an image in pixels, must be {side}."
            )


RULES = ImageRules()
