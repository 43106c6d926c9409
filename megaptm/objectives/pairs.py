"""Two texts from a group of sentences, and a question about them: next-sentence (BERT), sentence-order (ALBERT)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from megaptm.batch import IGNORED
from megaptm.objectives.objective import SentenceGroup

# arXiv:1810.04805, appendix A.2, and the released code.
SHORTER = 0.1
RANDOM = 0.5
ORDERED = 0.5


@dataclass(frozen=True)
class Pair:
    """Two texts, and the answer to what is asked about them."""

    first: np.ndarray
    second: np.ndarray
    label: int


def next_sentence_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> Pair:
    """A random prefix of the group, then its rest or another document's sentences; `length` tokens at most together.

    One in ten aims at fewer: its sentences end where it has them, and none is cut for that.

    A group of one sentence has no rest, so more than half of all pairs are random, as in the released code. That code
    puts the unused rest back and goes on from there; here groups are fixed by the index, so that sample i is known
    without making the ones before it, and the rest waits for another epoch.
    """
    aim = _aim(rng, length)
    sentences = up_to(group.sentences, aim)
    split = int(rng.integers(1, len(sentences))) if len(sentences) > 1 else 1
    random = len(sentences) == 1 or rng.random() < RANDOM
    first = np.concatenate(sentences[:split])
    rest = up_to(group.other(rng), aim - len(first)) if random else sentences[split:]
    return truncated(first, np.concatenate(rest), int(random), rng, length)


def sentence_order_pair(group: SentenceGroup, rng: np.random.Generator, length: int) -> Pair:
    """Two consecutive stretches of sentences in their order (label 0) or swapped (1), each as often (arXiv:1909.11942,
    3.1).

    A group of one sentence is cut in its middle, and nothing is asked about it.
    """
    sentences = up_to(group.sentences, _aim(rng, length))
    if len(sentences) == 1:
        middle = max(1, len(sentences[0]) // 2)
        return truncated(sentences[0][:middle], sentences[0][middle:], IGNORED, rng, length)
    split = int(rng.integers(1, len(sentences)))
    first, second = np.concatenate(sentences[:split]), np.concatenate(sentences[split:])
    pair = truncated(first, second, 0, rng, length)
    return pair if rng.random() < ORDERED else Pair(pair.second, pair.first, 1)


def _aim(rng: np.random.Generator, length: int) -> int:
    """Tokens that a pair is to have: `length`, or one time in ten fewer."""
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


def truncated(first: np.ndarray, second: np.ndarray, label: int, rng: np.random.Generator, length: int) -> Pair:
    """Take tokens from the longer text, from its front or back at random, until both fit in `length`.

    One token at a time in the released code; how many each loses is known beforehand, and how many of them from the
    front is a binomial draw.
    """
    # Equal lengths lose from the second.
    keep_second = min(len(second), max(length // 2, length - len(first)))
    keep_first = min(len(first), length - keep_second)
    return Pair(_shortened(first, keep_first, rng), _shortened(second, keep_second, rng), label)


def _shortened(text: np.ndarray, keep: int, rng: np.random.Generator) -> np.ndarray:
    front = int(rng.binomial(len(text) - keep, 0.5))
    return text[front : front + keep]


PAIRS: dict[str, Callable[[SentenceGroup, np.random.Generator, int], Pair]] = {
    "next-sentence": next_sentence_pair,
    "sentence-order": sentence_order_pair,
}
"""Question -> (sentences, generator, most tokens) -> the pair. The answer's field is its name, with underscores."""
ANSWERS = {
    "next_sentence": ("the next one", "a random one"),
    "sentence_order": ("the next one", "the one before the first"),
}
"""Field -> its answers 0 and 1: what the second text is."""
