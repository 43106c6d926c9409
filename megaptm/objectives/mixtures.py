"""Mixtures of tasks that have a name, because a paper trains on them."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.objectives.compose import ONE, Composed, StepValue, Task
from megaptm.objectives.masked import MaskedLM, MaskedLMOnPairs
from megaptm.objectives.ordered import OrderedMaskedLM
from megaptm.objectives.questions import Capitalization, TextQuestion, TokenDocument


@dataclass(frozen=True)
class NamedMixture(Composed):
    """Tasks of fixed shares under one name."""

    label: str = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.label


def _third(parts: int = 1) -> StepValue:
    return StepValue((0,), (1 / (3 * parts),))


# arXiv:1905.03197, 2.3: a third both ways, with the question about the next sentence; a third from sequence to
# sequence; a sixth each way.
UNILM = NamedMixture(
    tasks=(
        Task("bidirectional", MaskedLMOnPairs("next-sentence", OrderedMaskedLM()), _third()),
        Task("sequence-to-sequence", OrderedMaskedLM(context="sequence-to-sequence"), _third()),
        Task("left-to-right", OrderedMaskedLM(context="left-to-right"), _third(2)),
        Task("right-to-left", OrderedMaskedLM(context="right-to-left"), _third(2)),
    ),
    by_step={"mlm": ONE, "next-sentence": ONE},
    label="unilm",
)

# arXiv:1907.12412, 4.2: the tasks that need no labeled pairs, all at once; configs/ernie-2 learns one after the other.
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
