"""Lines and characters of training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

# Share of the text that characters with ids must cover (SentencePiece's default). The rarest characters get none.
CHARACTER_COVERAGE = 0.9995
# Longer lines are cut: they cost quadratic time and add no information about words.
LONGEST_LINE = 10_000


def find_alphabet(texts: list[str]) -> list[str]:
    """Return the alphabet of training texts: the characters that cover nearly all of the text, sorted by code point."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    counts = Counter({character: n for character, n in counts.items() if not character.isspace()})
    remaining = sum(counts.values()) * CHARACTER_COVERAGE
    alphabet = []
    for character, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if remaining <= 0:
            break
        alphabet.append(character)
        remaining -= n
    return sorted(alphabet)


def normalize_lines(texts: Iterable[str], normalize: Callable[[str], str]) -> Iterable[str]:
    """Yield the normalized lines of a tokenizer's training texts."""
    for text in texts:
        for line in text.splitlines():
            for start in range(0, len(line), LONGEST_LINE):
                if piece := normalize(line[start : start + LONGEST_LINE]):
                    yield piece
