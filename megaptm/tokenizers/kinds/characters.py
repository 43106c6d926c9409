"""The lines and characters of a text, as the kinds learn from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

# Characters rarer than this share of the text do not get ids of their own (SentencePiece's default).
CHARACTER_COVERAGE = 0.9995
# A longer line is cut: it would cost quadratic time and teaches nothing about words.
LONGEST_LINE = 10_000


def alphabet_of(texts: list[str]) -> list[str]:
    """The characters that make up nearly all of the text, in code order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    counts = Counter({character: n for character, n in counts.items() if not character.isspace()})
    rest = sum(counts.values()) * CHARACTER_COVERAGE
    kept = []
    for character, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if rest <= 0:
            break
        kept.append(character)
        rest -= n
    return sorted(kept)


def lines_of(texts: Iterable[str], normalize: Callable[[str], str]) -> Iterable[str]:
    """The lines of the texts, normalized."""
    for text in texts:
        for line in text.splitlines():
            for start in range(0, len(line), LONGEST_LINE):
                if piece := normalize(line[start : start + LONGEST_LINE]):
                    yield piece
