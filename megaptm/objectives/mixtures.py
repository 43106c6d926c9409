"""Named mixtures of tasks, as published."""

from __future__ import annotations

from dataclasses import dataclass, replace

from megaptm.objectives.composed import CONSTANT_ONE, Composed, StepValue, Task
from megaptm.objectives.contrast import CrossModalContrast
from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion
from megaptm.objectives.ordered import OrderedMaskedLM
from megaptm.objectives.questions import Capitalization, TextQuestion, TokenDocument
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


def _third(parts: int = 1) -> StepValue:
    return StepValue((0,), (1 / (3 * parts),))


# arXiv:1905.03197, 2.3: 80% of masked spans are one token, 10% bigrams, 10% trigrams.
MASKED_NGRAMS = OrderedMaskedLM(hide="token-ngrams", length_weights=(0.8, 0.1, 0.1))


# Same section: a third bidirectional with next-sentence prediction, a third sequence-to-sequence, a sixth for each
# direction.
UNILM = NamedMixture(
    tasks=(
        Task("bidirectional", MaskedLMWithQuestion("next-sentence", MASKED_NGRAMS), _third()),
        Task("sequence-to-sequence", replace(MASKED_NGRAMS, context="sequence-to-sequence"), _third()),
        Task("left-to-right", replace(MASKED_NGRAMS, context="left-to-right"), _third(2)),
        Task("right-to-left", replace(MASKED_NGRAMS, context="right-to-left"), _third(2)),
    ),
    weights_by_step={"mlm": CONSTANT_ONE, "next-sentence": CONSTANT_ONE},
    label="unilm",
)

# arXiv:1907.12412, 4.2: the tasks without labeled pairs, all at once. configs/ernie-2 learns them one after the other.
ERNIE_2 = NamedMixture(
    tasks=(
        Task("knowledge", MaskedLM(hide="independent"), CONSTANT_ONE, 0),
        Task("capitals", Capitalization(), CONSTANT_ONE, 1),
        Task("tokens-of-documents", TokenDocument(), CONSTANT_ONE, 2),
        Task("reordering", TextQuestion("sentence-reordering"), CONSTANT_ONE, 3),
    ),
    weights_by_step={
        "mlm": CONSTANT_ONE,
        "capitalization": CONSTANT_ONE,
        "token-document": CONSTANT_ONE,
        "sentence-reordering": CONSTANT_ONE,
    },
    label="ernie-2",
)

# arXiv:1909.11740, section 3.2, and released configs: 2 : 2 : 1 : 1, one task per batch, transport weight 0.1.
UNITER = NamedMixture(
    tasks=(
        Task("matching", ImageTextMatching(), _third()),
        Task("words", RegionMaskedLM(), _third()),
        Task("features", MaskedRegions(), _third(2)),
        Task("classes", MaskedRegions(target="distribution"), _third(2)),
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
