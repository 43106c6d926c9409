"""Named mixtures of tasks, as published."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.objectives.composed import CONSTANT_ONE, Composed, StepValue, Task
from megaptm.objectives.contrast import CrossModalContrast
from megaptm.objectives.regions import ImageTextMatching, MaskedRegions, RegionMaskedLM
from megaptm.objectives.unified import (
    ImageTextFragments,
    ImageTextSpans,
    MaskedAreas,
    TextFragments,
    TextSpans,
)


@dataclass(frozen=True)
class NamedMixture(Composed):
    """Tasks with fixed shares, under one name."""

    label: str = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.label


def third(parts: int = 1) -> StepValue:
    """Return the share of one of `parts` equal parts of a third."""
    return StepValue((0,), (1 / (3 * parts),))


# arXiv:1909.11740, section 3.2, and released configs: 2 : 2 : 1 : 1, one task per batch, transport weight 0.1.
UNITER = NamedMixture(
    tasks=(
        Task("matching", ImageTextMatching(), third()),
        Task("words", RegionMaskedLM(), third()),
        Task("features", MaskedRegions(), third(2)),
        Task("classes", MaskedRegions(target="distribution"), third(2)),
    ),
    weights_by_step={
        "itm": CONSTANT_ONE,
        "wra": StepValue((0,), (0.1,)),
        "mlm": CONSTANT_ONE,
        "mrfr": CONSTANT_ONE,
        "mrc-kl": CONSTANT_ONE,
    },
    label="uniter",
)


def _sevenths(parts: float) -> StepValue:
    return StepValue((0,), (parts / 7,))


# arXiv:2012.15409, section 3.1: images, pairs and texts 1 : 1 : 5. Shares of the tasks of each kind are not published;
# equal here.
UNIMO = NamedMixture(
    tasks=(
        Task("spans", TextSpans(units="tokens"), _sevenths(5 / 2)),
        Task("fragments", TextFragments(), _sevenths(5 / 2)),
        Task("areas", MaskedAreas(image_only=True), _sevenths(1 / 2)),
        Task("classes", MaskedAreas(target="distribution", image_only=True), _sevenths(1 / 2)),
        Task("contrast", CrossModalContrast(), _sevenths(1 / 5)),
        Task("pair-spans", ImageTextSpans(), _sevenths(1 / 5)),
        Task("pair-fragments", ImageTextFragments(), _sevenths(1 / 5)),
        Task("pair-areas", MaskedAreas(), _sevenths(1 / 5)),
        Task("pair-classes", MaskedAreas(target="distribution"), _sevenths(1 / 5)),
    ),
    weights_by_step={"mlm": CONSTANT_ONE, "mrfr": CONSTANT_ONE, "mrc-kl": CONSTANT_ONE, "cmcl": CONSTANT_ONE},
    label="unimo",
)
