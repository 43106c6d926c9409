"""Texts from sentence groups with a question about them: next-sentence (BERT), sentence-order (ALBERT), dialogue (ERNIE
1.0), sentence-distance, sentence-reordering, discourse and relevance (ERNIE 2.0)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import factorial
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import IGNORED
from megaptm.objectives.objective import SampleObjective, SentenceGroup

# arXiv:1810.04805, appendix A.2, and released code.
SHORT_PAIR_PROB = 0.1
RANDOM_NEXT_PROB = 0.5
IN_ORDER_PROB = 0.5


@dataclass(frozen=True)
class LabeledTexts:
    """Texts, the segment id of each, and the label, if any."""

    texts: list[np.ndarray]
    segments: list[int]
    label: int = IGNORED


def next_sentence_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return a random prefix of the group, and its rest or another document's sentences: `length` tokens at most, and
    for some pairs only complete sentences up to a shorter target.

    A group of one sentence has no rest, so more than half of all pairs are random, as in the released code. That code
    reuses the unused rest in the next sample. Here groups are fixed by the index, so that sample i is known without
    making earlier ones; the rest is used in another epoch.
    """
    target = sample_target_length(rng, length)
    sentences = take_sentences(group.sentences, target)
    split = int(rng.integers(1, len(sentences))) if len(sentences) > 1 else 1
    is_random = len(sentences) == 1 or rng.random() < RANDOM_NEXT_PROB
    first = np.concatenate(sentences[:split])
    second = take_sentences(group.sample_other_document(rng), target - len(first)) if is_random else sentences[split:]
    return truncate_pair(first, np.concatenate(second), int(is_random), rng, length)


def sentence_order_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return two consecutive stretches of sentences in order (label 0) or swapped (1), equally often (arXiv:1909.11942,
    3.1).

    A group of one sentence is split in the middle and has no label.
    """
    sentences = take_sentences(group.sentences, sample_target_length(rng, length))
    if len(sentences) == 1:
        middle = max(1, len(sentences[0]) // 2)
        return truncate_pair(sentences[0][:middle], sentences[0][middle:], IGNORED, rng, length)
    split = int(rng.integers(1, len(sentences)))
    first, second = np.concatenate(sentences[:split]), np.concatenate(sentences[split:])
    pair = truncate_pair(first, second, 0, rng, length)
    return pair if rng.random() < IN_ORDER_PROB else LabeledTexts(pair.texts[::-1], [0, 1], 1)


def sentence_distance_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return two stretches that are adjacent (label 0), apart in one document (1), or of two documents (2), equally
    often if the group has enough sentences (arXiv:1907.12412, 4.2.2). Lengths do not reveal the label."""
    sentences = take_sentences(group.sentences, length)
    count = len(sentences)
    distances = [0, 1, 2] if count > 2 else [0, 2] if count > 1 else [2]
    label = distances[int(rng.integers(len(distances)))]
    if count > 2:
        first, last = (np.sort(rng.choice(count - 1, 2, replace=False)) + 1).tolist()
    else:
        first, last = 1, 1
    second = sentences[last:]
    if label == 0:
        second = sentences[first : first + len(second)]
    elif label == 2:
        max_length = max(1, sum(map(len, second)) or length - len(sentences[0]))
        second = [np.concatenate(take_sentences(group.sample_other_document(rng), max_length))[:max_length]]
    return truncate_pair(np.concatenate(sentences[:first]), np.concatenate(second), label, rng, length)


MAX_STRETCHES = 3
"""Maximum number of reordered stretches."""


def reordered_stretches(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return up to three shuffled stretches of a group; the label is one of 1! + 2! + 3! orders (arXiv:1907.12412,
    4.2.2)."""
    sentences = take_sentences(group.sentences, length)
    stretches = int(rng.integers(1, min(MAX_STRETCHES, len(sentences)), endpoint=True))
    cuts = np.sort(rng.choice(len(sentences) - 1, stretches - 1, replace=False)) + 1
    text = np.concatenate(sentences)[:length]
    starts = np.cumsum([0, *map(len, sentences)])[[0, *cuts, len(sentences)]]
    parts = [text[first:stop] for first, stop in pairwise(np.minimum(starts, len(text)))]
    order = rng.permutation(stretches).tolist()
    return LabeledTexts([parts[index] for index in order], [*range(stretches)], order_label(order))


def order_label(order: list[int]) -> int:
    """Return the index of an order: lexicographic, orders of fewer elements first."""
    fewer = sum(factorial(count) for count in range(1, len(order)))
    return fewer + list(permutations(range(len(order)))).index(tuple(order))


def labeled_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return the two parts of a document, with its label. The longer part is truncated first."""
    texts = group.sentences[:2]
    if len(texts) < 2:  # part of a document that is longer than a sequence
        return LabeledTexts([texts[0][:length]], [0], IGNORED)
    lengths = fit_lengths([*map(len, texts)], length)
    return LabeledTexts([text[:n] for text, n in zip(texts, lengths, strict=True)], [0, 1], group.label)


MAX_TURNS = 3
FOREIGN_TURN_PROB = 0.5
"""Share of dialogues with a turn of another dialogue. arXiv:1904.09223 does not publish it."""


def dialogue_turns(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return up to three consecutive turns; label 1 if one was replaced by a turn of another dialogue. Segment ids are
    roles: 0 is the first speaker (arXiv:1904.09223, 3.3).

    The last mark of a turn is its role. A single turn has no label.
    """
    first = int(rng.integers(max(0, len(group.sentences) - MAX_TURNS), endpoint=True))
    turns = group.sentences[first : first + MAX_TURNS]
    roles = [int(turn[0, -1]) for turn in turns]
    label = IGNORED if len(turns) == 1 else int(rng.random() < FOREIGN_TURN_PROB)
    if label == 1:
        turns[int(rng.integers(len(turns)))] = next(iter(group.sample_other_document(rng)))
    texts = [turn[:, 0] if turn.shape[1] == 2 else turn[:, :-1] for turn in turns]
    lengths = fit_lengths([*map(len, texts)], length)
    texts = [text[:n] for text, n in zip(texts, lengths, strict=True)]
    return LabeledTexts(texts, [int(role != roles[0]) for role in roles], label)


def fit_lengths(lengths: list[int], room: int) -> list[int]:
    """Return the lengths of texts that must fit together: the longest are truncated first."""
    fitted, left = [0] * len(lengths), room
    for rank, index in enumerate(np.argsort(lengths).tolist()):
        fitted[index] = min(lengths[index], left // (len(lengths) - rank))
        left -= fitted[index]
    return fitted


def sample_target_length(rng: np.random.Generator, length: int) -> int:
    """Return the length at which no further sentence is added: `length`, or for a tenth of the pairs a smaller random
    one."""
    return int(rng.integers(2, length, endpoint=True)) if rng.random() < SHORT_PAIR_PROB else length


def take_sentences(sentences: Iterable[np.ndarray], length: int) -> list[np.ndarray]:
    """Return the first sentences, at least one, until they have `length` tokens; the last may exceed it."""
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
    """Truncate the longer text, from front or back at random, until both fit in `length`.

    The released code removes one token at a time. Here the number that each text loses is computed, and the share from
    the front is a binomial sample.
    """
    # Of equal lengths the second is truncated.
    keep_second = min(len(second), max(length // 2, length - len(first)))
    keep_first = min(len(first), length - keep_second)
    return LabeledTexts([_truncate(first, keep_first, rng), _truncate(second, keep_second, rng)], [0, 1], label)


def _truncate(text: np.ndarray, keep: int, rng: np.random.Generator) -> np.ndarray:
    front = int(rng.binomial(len(text) - keep, 0.5))
    return text[front : front + keep]


@dataclass(frozen=True)
class Question:
    """Question about the texts of a sequence. Its batch field is its name with underscores."""

    make_texts: Callable[[SentenceGroup, np.random.Generator, int], LabeledTexts]
    """(sentences, generator, maximum tokens) -> texts."""
    max_texts: int = 2
    """Maximum number of texts."""
    num_segments: int = 2
    """Number of segment ids."""
    unit: Literal["sentences", "turns", "parts"] = "sentences"
    """Unit of a sample (`BaseObjective.unit`); `turns` have roles."""
    num_classes: int = 2
    """Number of classes, equal to that of the head with the same name (`bricks.heads`)."""
    label_meanings: tuple[str, ...] = ()
    """Meaning of labels 0, 1 ... for the second text, for messages."""

    @property
    def annotations(self) -> tuple[str, ...]:
        """Annotations that texts and labels need."""
        return {"sentences": (), "turns": ("turns",), "parts": ("parts", "labels")}[self.unit]


def question_field(question: str) -> str:
    """Return the batch field of a question."""
    return question.replace("-", "_")


QUESTIONS: dict[str, Question] = {
    "next-sentence": Question(next_sentence_pair, label_meanings=("the next one", "a random one")),
    "sentence-order": Question(sentence_order_pair, label_meanings=("the next one", "the one before the first")),
    "sentence-distance": Question(
        sentence_distance_pair, num_classes=3, label_meanings=("the next one", "a later one", "a random one")
    ),
    "sentence-reordering": Question(
        reordered_stretches,
        max_texts=MAX_STRETCHES,
        num_segments=MAX_STRETCHES,
        num_classes=sum(factorial(count) for count in range(1, MAX_STRETCHES + 1)),
    ),
    "dialogue": Question(
        dialogue_turns, max_texts=MAX_TURNS, unit="turns", label_meanings=("of one dialogue", "with a turn of another")
    ),
    "discourse": Question(labeled_pair, unit="parts", num_classes=174),
    "relevance": Question(labeled_pair, unit="parts", num_classes=3),
}
"""Questions by name, which is also the name of their head. A new question needs an entry here, and a
`bricks.heads.RowClassHeadBrick`."""


@dataclass(frozen=True)
class QuestionObjective(SampleObjective):
    """Base of objectives whose samples are the texts of a question."""

    question: str = "next-sentence"
    """Key of QUESTIONS."""

    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    @property
    def definition(self) -> Question:
        """Question of this name."""
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
