"""Tasks of UNIMO and their mixture (arXiv:2012.15409, section 3.1)."""

from __future__ import annotations

from megaptm.families.unimo.contrast import CrossModalContrast
from megaptm.families.unimo.fragments import FragmentGeneration
from megaptm.families.unimo.unified import (
    ImageTextFragments,
    ImageTextSpans,
    MaskedAreas,
    TextFragments,
    TextSpans,
)
from megaptm.objectives.composed import CONSTANT_ONE, StepValue, Task
from megaptm.objectives.mixtures import NamedMixture


def _share_in_sevenths(parts: float) -> StepValue:
    return StepValue((0,), (parts / 7,))


# Images, pairs and texts 1 : 1 : 5. Shares of the tasks of each kind are not published; equal here.
UNIMO = NamedMixture(
    tasks=(
        Task("spans", TextSpans(units="tokens"), _share_in_sevenths(5 / 2)),
        Task("fragments", TextFragments(), _share_in_sevenths(5 / 2)),
        Task("areas", MaskedAreas(image_only=True), _share_in_sevenths(1 / 2)),
        Task("classes", MaskedAreas(target="distribution", image_only=True), _share_in_sevenths(1 / 2)),
        Task("contrast", CrossModalContrast(), _share_in_sevenths(1 / 5)),
        Task("pair-spans", ImageTextSpans(), _share_in_sevenths(1 / 5)),
        Task("pair-fragments", ImageTextFragments(), _share_in_sevenths(1 / 5)),
        Task("pair-areas", MaskedAreas(), _share_in_sevenths(1 / 5)),
        Task("pair-classes", MaskedAreas(target="distribution"), _share_in_sevenths(1 / 5)),
    ),
    weights_by_step={"mlm": CONSTANT_ONE, "mrfr": CONSTANT_ONE, "mrc-kl": CONSTANT_ONE, "cmcl": CONSTANT_ONE},
    label="unimo",
)

TASKS = {
    "cross-modal-contrast": CrossModalContrast,
    "fragment-generation": FragmentGeneration,
    "image-text-fragments": ImageTextFragments,
    "image-text-spans": ImageTextSpans,
    "masked-areas": MaskedAreas,
    "text-fragments": TextFragments,
    "text-spans": TextSpans,
}
OBJECTIVES = (
    FragmentGeneration(),
    TextSpans(),
    TextFragments(),
    ImageTextSpans(),
    ImageTextFragments(),
    MaskedAreas(),
    MaskedAreas(target="class"),
    MaskedAreas(target="distribution"),
    CrossModalContrast(),
    UNIMO,
)
