"""Texts from a group of sentences, and a question about them: next-sentence (BERT), sentence-order (ALBERT), dialogue
(ERNIE 1.0), sentence-distance, sentence-reordering, discourse and relevance (ERNIE 2.0)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import factorial
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import IGNORED
from megaptm.objectives.objective import SampleObjective, SentenceGroup

# arXiv:1810.04805, appendix A.2, and the released code.
SHORTER = 0.1
RANDOM = 0.5
ORDERED = 0.5


@dataclass(frozen=True)
class LabeledTexts:
    """Some texts, the segment of each, and the answer to what is asked about them, if anything is."""

    texts: list[np.ndarray]
    segments: list[int]
    label: int = IGNORED


def next_sentence_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """A random prefix of the group, then its rest or another document's sentences; `length` tokens at most together,
    and for some only as many whole sentences as reach a shorter target.

    A group of one sentence has no rest, so more than half of all pairs are random, as in the released code. That code
    puts the unused rest back and goes on from there; here groups are fixed by the index, so that sample i is known
    without making the ones before it, and the rest waits for another epoch.
    """
    target = target_length(rng, length)
    sentences = up_to(group.sentences, target)
    split = int(rng.integers(1, len(sentences))) if len(sentences) > 1 else 1
    random = len(sentences) == 1 or rng.random() < RANDOM
    first = np.concatenate(sentences[:split])
    rest = up_to(group.other(rng), target - len(first)) if random else sentences[split:]
    return truncated(first, np.concatenate(rest), int(random), rng, length)


def sentence_order_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Two consecutive stretches of sentences in their order (label 0) or swapped (1), each as often (arXiv:1909.11942,
    3.1).

    A group of one sentence is cut in its middle, and nothing is asked about it.
    """
    sentences = up_to(group.sentences, target_length(rng, length))
    if len(sentences) == 1:
        middle = max(1, len(sentences[0]) // 2)
        return truncated(sentences[0][:middle], sentences[0][middle:], IGNORED, rng, length)
    split = int(rng.integers(1, len(sentences)))
    first, second = np.concatenate(sentences[:split]), np.concatenate(sentences[split:])
    pair = truncated(first, second, 0, rng, length)
    return pair if rng.random() < ORDERED else LabeledTexts(pair.texts[::-1], [0, 1], 1)


def sentence_distance_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Two stretches that are neighbors (label 0), apart in one document (1), or of two documents (2), each as often
    where the group has sentences for it (arXiv:1907.12412, 4.2.2). Their lengths do not tell which.
    """
    sentences = up_to(group.sentences, length)
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
        most = max(1, sum(map(len, second)) or length - len(sentences[0]))
        second = [np.concatenate(up_to(group.other(rng), most))[:most]]
    return truncated(np.concatenate(sentences[:first]), np.concatenate(second), label, rng, length)


STRETCHES = 3
"""Of reordered sentences, at most."""


def reordered_sentences(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Up to three stretches of a group in any order; which of 1! + 2! + 3! is asked (arXiv:1907.12412, 4.2.2)."""
    sentences = up_to(group.sentences, length)
    stretches = int(rng.integers(1, min(STRETCHES, len(sentences)), endpoint=True))
    cuts = np.sort(rng.choice(len(sentences) - 1, stretches - 1, replace=False)) + 1
    whole = np.concatenate(sentences)[:length]
    starts = np.cumsum([0, *map(len, sentences)])[[0, *cuts, len(sentences)]]
    parts = [whole[first:stop] for first, stop in pairwise(np.minimum(starts, len(whole)))]
    order = rng.permutation(stretches).tolist()
    return LabeledTexts([parts[place] for place in order], [*range(stretches)], reordering_class(order))


def reordering_class(order: list[int]) -> int:
    """The number of an order among those of fewer things, and then of as many, by the alphabet."""
    fewer = sum(factorial(count) for count in range(1, len(order)))
    return fewer + list(permutations(range(len(order)))).index(tuple(order))


def labeled_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """The two parts of a document, whose label is asked; the longer one loses its end first."""
    texts = group.sentences[:2]
    if len(texts) < 2:  # a stretch of a document that is longer than a row
        return LabeledTexts([texts[0][:length]], [0], IGNORED)
    room = fair_shares([*map(len, texts)], length)
    return LabeledTexts([text[:most] for text, most in zip(texts, room, strict=True)], [0, 1], group.label)


TURNS = 3
FAKED = 0.5
"""Of dialogues, those with a turn of another one: arXiv:1904.09223 does not say how many."""


def dialogue_turns(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Three turns that follow each other, or as many as there are; whether they are real (label 0), or one has given
    its place to a turn of another dialogue (1). Segments are roles: 0 is who speaks first (arXiv:1904.09223, 3.3).

    Turns come with roles as their last mark; one alone is asked nothing.
    """
    first = int(rng.integers(max(0, len(group.sentences) - TURNS), endpoint=True))
    turns = group.sentences[first : first + TURNS]
    roles = [int(turn[0, -1]) for turn in turns]
    label = IGNORED if len(turns) == 1 else int(rng.random() < FAKED)
    if label == 1:
        turns[int(rng.integers(len(turns)))] = next(iter(group.other(rng)))
    texts = [turn[:, 0] if turn.shape[1] == 2 else turn[:, :-1] for turn in turns]
    room = fair_shares([len(text) for text in texts], length)
    texts = [text[:most] for text, most in zip(texts, room, strict=True)]
    return LabeledTexts(texts, [int(role != roles[0]) for role in roles], label)


def fair_shares(lengths: list[int], room: int) -> list[int]:
    """How long texts may stay that must fit together: the longest lose first."""
    kept, left = [0] * len(lengths), room
    for rank, place in enumerate(np.argsort(lengths).tolist()):
        kept[place] = min(lengths[place], left // (len(lengths) - rank))
        left -= kept[place]
    return kept


def target_length(rng: np.random.Generator, length: int) -> int:
    """Tokens at which no further sentence is taken: those of a row, or for a tenth of the pairs any number below."""
    return int(rng.integers(2, length, endpoint=True)) if rng.random() < SHORTER else length


def up_to(sentences: Iterable[np.ndarray], length: int) -> list[np.ndarray]:
    """The first sentences, at least one, until they have `length` tokens; the last may go beyond."""
    taken: list[np.ndarray] = []
    for sentence in sentences:
        taken.append(sentence)
        length -= len(sentence)
        if length <= 0:
            break
    return taken


def truncated(first: np.ndarray, second: np.ndarray, label: int, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Take tokens from the longer text, from its front or back at random, until both fit in `length`.

    One token at a time in the released code; how many each loses is known beforehand, and how many of them from the
    front is a binomial draw.
    """
    # Equal lengths lose from the second.
    keep_second = min(len(second), max(length // 2, length - len(first)))
    keep_first = min(len(first), length - keep_second)
    return LabeledTexts([_shortened(first, keep_first, rng), _shortened(second, keep_second, rng)], [0, 1], label)


def _shortened(text: np.ndarray, keep: int, rng: np.random.Generator) -> np.ndarray:
    front = int(rng.binomial(len(text) - keep, 0.5))
    return text[front : front + keep]


@dataclass(frozen=True)
class Question:
    """What is asked about the texts of a row. The answer's field is its name, with underscores."""

    texts_of: Callable[[SentenceGroup, np.random.Generator, int], LabeledTexts]
    """(sentences, generator, most tokens) -> the texts."""
    texts: int = 2
    """Of a row, at most."""
    segments: int = 2
    """By which texts are told apart."""
    pieces: Literal["sentences", "turns", "parts"] = "sentences"
    """What it makes texts of; `turns` come with roles."""
    classes: int = 2
    """How many answers there may be: as many as those of the head of the same name (`bricks.heads`)."""
    says: tuple[str, ...] = ()
    """Of answers 0, 1 ..., what the second text then is."""

    @property
    def annotations(self) -> tuple[str, ...]:
        """That texts and answers are made of."""
        return {"sentences": (), "turns": ("turns",), "parts": ("parts", "labels")}[self.pieces]


def field_of(question: str) -> str:
    """Of a batch, with the answer."""
    return question.replace("-", "_")


QUESTIONS: dict[str, Question] = {
    "next-sentence": Question(next_sentence_pair, says=("the next one", "a random one")),
    "sentence-order": Question(sentence_order_pair, says=("the next one", "the one before the first")),
    "sentence-distance": Question(
        sentence_distance_pair, classes=3, says=("the next one", "a later one", "a random one")
    ),
    "sentence-reordering": Question(
        reordered_sentences,
        texts=STRETCHES,
        segments=STRETCHES,
        classes=sum(factorial(count) for count in range(1, STRETCHES + 1)),
    ),
    "dialogue": Question(
        dialogue_turns, texts=TURNS, pieces="turns", says=("of one dialogue", "with a turn of another")
    ),
    "discourse": Question(labeled_pair, pieces="parts", classes=174),
    "relevance": Question(labeled_pair, pieces="parts", classes=3),
}
"""By name, which is also that of its head: a new question is a row here, and a `bricks.heads.RowClassHeadBrick`."""


@dataclass(frozen=True)
class QuestionObjective(SampleObjective):
    """Base of objectives whose rows are the texts of a question: what the question says of them."""

    question: str = "next-sentence"
    """One of QUESTIONS."""

    unit = "sentence-group"
    template: ClassVar = ("cls A sep", "cls A sep B:1 sep:1")

    @property
    def asked(self) -> Question:
        """What its name says."""
        return QUESTIONS[self.question]

    @property
    def segments(self) -> int:  # type: ignore[override]
        return self.asked.segments

    @property
    def pieces(self) -> Literal["sentences", "turns", "parts"]:  # type: ignore[override]
        return self.asked.pieces

    @property
    def answers(self) -> int:  # type: ignore[override]
        # Of those that the corpus says; others are made with the texts.
        return self.asked.classes if self.asked.pieces == "parts" else 0

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.asked.annotations

    def raw_length(self, sequence: int) -> int:
        return sequence - 1 - self.asked.texts
