"""Questions about texts: dialogue (ERNIE 1.0); sentence-distance, sentence-reordering, discourse and relevance (ERNIE
2.0)."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import factorial

import numpy as np

from megaptm.batch import IGNORED
from megaptm.objectives.objective import SentenceGroup
from megaptm.objectives.text_questions import LabeledTexts, Question, fit_lengths, take_sentences, truncate_pair


def sentence_distance_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return ERNIE 2.0's text pair for sentence-distance: two stretches that are adjacent (label 0), apart in one
    document (1), or of two documents (2), equally often if the group has enough sentences (arXiv:1907.12412, 4.2.2).
    Lengths do not reveal the label."""
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
"""Maximum number of sentence stretches that ERNIE 2.0's sentence-reordering shuffles."""


def _reordered_stretches(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return ERNIE 2.0's texts for sentence-reordering: up to three shuffled stretches of a group; the label is one of
    1! + 2! + 3! orders (arXiv:1907.12412, 4.2.2)."""
    sentences = take_sentences(group.sentences, length)
    stretches = int(rng.integers(1, min(MAX_STRETCHES, len(sentences)), endpoint=True))
    cuts = np.sort(rng.choice(len(sentences) - 1, stretches - 1, replace=False)) + 1
    text = np.concatenate(sentences)[:length]
    starts = np.cumsum([0, *map(len, sentences)])[[0, *cuts, len(sentences)]]
    parts = [text[first:stop] for first, stop in pairwise(np.minimum(starts, len(text)))]
    order = rng.permutation(stretches).tolist()
    return LabeledTexts([parts[index] for index in order], [*range(stretches)], order_label(order))


def order_label(order: list[int]) -> int:
    """Return ERNIE 2.0's label of an order of reordered sentences: its index, lexicographic, orders of fewer elements
    first."""
    fewer = sum(factorial(count) for count in range(1, len(order)))
    return fewer + list(permutations(range(len(order)))).index(tuple(order))


def _labeled_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return ERNIE 2.0's labeled text pair for discourse and relevance: the two parts of a document, with its label.
    The longer part is truncated first."""
    texts = group.sentences[:2]
    if len(texts) < 2:  # part of a document that is longer than a sequence
        return LabeledTexts([texts[0][:length]], [0], IGNORED)
    lengths = fit_lengths([*map(len, texts)], length)
    return LabeledTexts([text[:n] for text, n in zip(texts, lengths, strict=True)], [0, 1], group.label)


MAX_TURNS = 3
FOREIGN_TURN_PROB = 0.5
"""Share of dialogues in which a turn of another dialogue is inserted (ERNIE 1.0). arXiv:1904.09223 does not publish
it."""


def _dialogue_turns(group: SentenceGroup, rng: np.random.Generator, length: int) -> LabeledTexts:
    """Return ERNIE's texts for the question `dialogue`: up to three consecutive turns; label 1 if one was replaced by a
    turn of another dialogue. Segment ids are roles: 0 is the first speaker (arXiv:1904.09223, 3.3).

    The last column of a turn in `group.sentences` is its role. A single turn has no label.
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


QUESTIONS = {
    "sentence-distance": Question(
        sentence_distance_pair, num_classes=3, label_meanings=("the next one", "a later one", "a random one")
    ),
    "sentence-reordering": Question(
        _reordered_stretches,
        max_texts=MAX_STRETCHES,
        num_segments=MAX_STRETCHES,
        num_classes=sum(factorial(count) for count in range(1, MAX_STRETCHES + 1)),
    ),
    "dialogue": Question(
        _dialogue_turns, max_texts=MAX_TURNS, unit="turns", label_meanings=("of one dialogue", "with a turn of another")
    ),
    "discourse": Question(_labeled_pair, unit="parts", num_classes=174),
    "relevance": Question(_labeled_pair, unit="parts", num_classes=3),
}
