"""Texts from sentence groups with a question about them: next-sentence (BERT) and sentence-order (ALBERT)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import IGNORED
from megaptm.families import Registry, contributions
from megaptm.objectives.objective import SampleObjective, SentenceGroup

# arXiv:1810.04805, appendix A.2, and released code.
SHORT_PAIR_PROB = 0.1
RANDOM_NEXT_PROB = 0.5
IN_ORDER_PROB = 0.5


@dataclass(frozen=True)
class LabeledTexts:
    """Texts of a sample with the segment id of each, and the label, if any."""

    texts: list[np.ndarray]
    segments: list[int]
    label: int = IGNORED


def _next_sentence_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return a text pair for next-sentence prediction: a random prefix of the group, and its rest or another document's
    sentences, `length` tokens at most, and for some pairs only complete sentences up to a shorter target.

    A group of one sentence has no rest, so more than half of all pairs are random, as in the released code. That code
    reuses the unused rest in the next sample. Here groups are fixed by the index, so that sample i is known without
    making earlier ones; the rest is used in another epoch.
    """
    target = _sample_target_length(rng, length)
    sentences = take_sentences(group.sentences, target)
    split = int(rng.integers(1, len(sentences))) if len(sentences) > 1 else 1
    is_random = len(sentences) == 1 or rng.random() < RANDOM_NEXT_PROB
    first = np.concatenate(sentences[:split])
    second = take_sentences(group.sample_other_document(rng), target - len(first)) if is_random else sentences[split:]
    return truncate_pair(first, np.concatenate(second), int(is_random), rng, length)


def _sentence_order_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return a text pair for sentence-order prediction: two consecutive stretches of sentences in order (label 0) or
    swapped (1), equally often (arXiv:1909.11942, 3.1).

    A group of one sentence is split in the middle and has no label.
    """
    sentences = take_sentences(group.sentences, _sample_target_length(rng, length))
    if len(sentences) == 1:
        middle = max(1, len(sentences[0]) // 2)
        return truncate_pair(sentences[0][:middle], sentences[0][middle:], IGNORED, rng, length)
    split = int(rng.integers(1, len(sentences)))
    first, second = np.concatenate(sentences[:split]), np.concatenate(sentences[split:])
    pair = truncate_pair(first, second, 0, rng, length)
    return pair if rng.random() < IN_ORDER_PROB else LabeledTexts(pair.texts[::-1], [0, 1], 1)


def fit_lengths(lengths: list[int], room: int) -> list[int]:
    """Return the lengths to which the texts of a sample must be truncated to fit together: the longest are truncated
    first."""
    fitted, left = [0] * len(lengths), room
    for rank, index in enumerate(np.argsort(lengths).tolist()):
        fitted[index] = min(lengths[index], left // (len(lengths) - rank))
        left -= fitted[index]
    return fitted


def _sample_target_length(rng: np.random.Generator, length: int) -> int:
    """Sample the length at which no further sentence is added to a text pair: `length`, or for a tenth of the pairs a
    smaller random one."""
    return int(rng.integers(2, length, endpoint=True)) if rng.random() < SHORT_PAIR_PROB else length


def take_sentences(sentences: Iterable[np.ndarray], length: int) -> list[np.ndarray]:
    """Take the first sentences of a group, at least one, until they have `length` tokens; the last may exceed it."""
    taken: list[np.ndarray] = []
    for sentence in sentences:
        taken.append(sentence)
        length -= len(sentence)
        if length <= 0:
            break
    return taken


def truncate_pair(
    first: np.ndarray, second: np.ndarray, label: int, rng: np.random.Generator, length: int
) -> LabeledTexts:
    """Truncate the longer text of a pair, from front or back at random, until both fit in `length`.

    The released code removes one token at a time. Here the number that each text loses is computed, and the share from
    the front is a binomial sample.
    """
    # Of equal lengths the second is truncated.
    keep_second = min(len(second), max(length // 2, length - len(first)))
    keep_first = min(len(first), length - keep_second)
    return LabeledTexts(
        [_truncate_text(first, keep_first, rng), _truncate_text(second, keep_second, rng)], [0, 1], label
    )


def _truncate_text(text: np.ndarray, keep: int, rng: np.random.Generator) -> np.ndarray:
    front = int(rng.binomial(len(text) - keep, 0.5))
    return text[front : front + keep]


@dataclass(frozen=True)
class Question:
    """Question about the texts of a sequence, such as their order. Its batch field is its name with underscores."""

    make_texts: Callable[[SentenceGroup, np.random.Generator, int], LabeledTexts]
    """Function that makes texts: (sentences, generator, maximum tokens) -> texts."""
    max_texts: int = 2
    """Maximum number of texts in a sample of the question."""
    num_segments: int = 2
    """Number of segment ids that the question uses."""
    unit: Literal["sentences", "turns", "parts"] = "sentences"
    """Unit of a sample (`BaseObjective.unit`); `turns` have roles."""
    num_classes: int = 2
    """Number of classes, equal to that of the head with the same name (`models.head_costs`)."""
    label_meanings: tuple[str, ...] = ()
    """Meaning of labels 0, 1 ... for the second text, for messages."""

    @property
    def annotations(self) -> tuple[str, ...]:
        """Return the annotations that texts and labels of the question need."""
        return {"sentences": (), "turns": ("turns",), "parts": ("parts", "labels")}[self.unit]


def question_field(question: str) -> str:
    """Return the batch field of a question's labels."""
    return question.replace("-", "_")


_QUESTIONS = {
    "next-sentence": Question(_next_sentence_pair, label_meanings=("the next one", "a random one")),
    "sentence-order": Question(_sentence_order_pair, label_meanings=("the next one", "the one before the first")),
}
QUESTIONS: Registry[Question] = Registry(
    _QUESTIONS, lambda: (entry for questions in contributions("questions", "QUESTIONS") for entry in questions.items())
)
"""Questions by name. The head of a question has the same name; its costs are a `RowClassHeadCosts`."""


@dataclass(frozen=True)
class QuestionObjective(SampleObjective):
    """Base of objectives whose samples are the texts of a question."""

    question: str = "next-sentence"
    """Name of the question, a key of QUESTIONS."""

    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    @property
    def definition(self) -> Question:
        """Return the question of the objective."""
        return QUESTIONS[self.question]

    @property
    def unit(self) -> Literal["sentences", "turns", "parts"]:  # type: ignore[override]
        return self.definition.unit

    @property
    def num_segments(self) -> int:  # type: ignore[override]
        return self.definition.num_segments

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        # Only labels of the corpus; other labels are made with the texts.
        return self.definition.num_classes if self.definition.unit == "parts" else 0

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.definition.annotations

    def raw_length(self, sequence: int) -> int:
        return sequence - 1 - self.definition.max_texts
