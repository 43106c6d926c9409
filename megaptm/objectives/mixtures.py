"""Named mixtures of tasks, as published."""

from __future__ import annotations

from dataclasses import dataclass, replace

from megaptm.objectives.composed import ONE, Composed, StepValue, Task
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
HIDDEN = OrderedMaskedLM(hide="token-ngrams", lengths=(0.8, 0.1, 0.1))


# Same section: a third bidirectional with next-sentence prediction, a third sequence-to-sequence, a sixth for each
# direction.
UNILM = NamedMixture(
    tasks=(
        Task("bidirectional", MaskedLMWithQuestion("next-sentence", HIDDEN), _third()),
        Task("sequence-to-sequence", replace(HIDDEN, context="sequence-to-sequence"), _third()),
        Task("left-to-right", replace(HIDDEN, context="left-to-right"), _third(2)),
        Task("right-to-left", replace(HIDDEN, context="right-to-left"), _third(2)),
    ),
    by_step={"mlm": ONE, "next-sentence": ONE},
    label="unilm",
)

# arXiv:1907.12412, 4.2: the tasks without labeled pairs, all at once. configs/ernie-2 learns them one after the other.
ERNIE_2 = NamedMixture(
    tasks=(
        Task("knowledge", MaskedLM(hide="independent"), ONE, 0),
        Task("capitals", Capitalization(), ONE, 1),
        Task("tokens-of-documents", TokenDocument(), ONE, 2),
        Task("reordering", TextQuestion("sentence-reordering"), ONE, 3),
    ),
    by_step={"mlm": ONE, "capitalization": ONE, "token-document": ONE, "sentence-reordering": ONE},
    label="ernie-2",
)

# arXiv:1909.11740, section 3.2, and released configs: 2 : 2 : 1 : 1, one task per batch, transport weight 0.1.
UNITER = NamedMixture(
    tasks=(
        Task("matching", ImageTextMatching(), _third()),
        Task("words", RegionMaskedLM(), _third()),
        Task("features", MaskedRegions(), _third(2)),
        Task("classes", MaskedRegions(ask_for="distribution"), _third(2)),
    ),
    by_step={"itm": ONE, "wra": StepValue((0,), (0.1,)), "mlm": ONE, "mrfr": ONE, "mrc-kl": ONE},
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
        Task("areas", MaskedAreas(alone=True), _sevenths(1 / 2)),
        Task("classes", MaskedAreas(ask_for="distribution", alone=True), _sevenths(1 / 2)),
        Task("contrast", CrossModalContrast(), _sevenths(1 / 5)),
        Task("pair-spans", ImageTextSpans(), _sevenths(1 / 5)),
        Task("pair-fragments", ImageTextFragments(), _sevenths(1 / 5)),
        Task("pair-areas", MaskedAreas(), _sevenths(1 / 5)),
        Task("pair-classes", MaskedAreas(ask_for="distribution"), _sevenths(1 / 5)),
    ),
    by_step={"mlm": ONE, "mrfr": ONE, "mrc-kl": ONE, "cmcl": ONE},
    label="unimo",
)
