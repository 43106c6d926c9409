"""Repetition rules of MassiveText (Gopher; Rae et al., 2021, arXiv:2112.11446, appendix A.1.1, table A1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from data_pipeline.clean.lines import lines_of, paragraphs_of
from data_pipeline.clean.repeats import Runs
from data_pipeline.clean.step import BatchFilter, require_shares
from data_pipeline.clean.words import Words, per_text, words_of
from data_pipeline.document import Document

TOP, DUPLICATE = (2, 3, 4), (5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class GopherRepetition(BatchFilter):
    """Drop repetitive text. Each option is the maximum share, by default that of table A1; `null` disables a rule.

    A line, paragraph or n-gram is a duplicate if it occurred earlier in the text. Shares of characters refer to all
    characters of lines and paragraphs without trailing white space, or to all characters of words. Blank lines are
    ignored.
    """

    duplicate_lines: float | None = 0.30
    duplicate_paragraphs: float | None = 0.30
    duplicate_line_characters: float | None = 0.20
    duplicate_paragraph_characters: float | None = 0.20
    top_2_gram: float | None = 0.20
    """Characters in the most frequent 2-gram. An n-gram that occurs once is not counted."""
    top_3_gram: float | None = 0.18
    top_4_gram: float | None = 0.16
    duplicate_5_grams: float | None = 0.15
    """Characters in 5-grams that occurred earlier. Each character counts once."""
    duplicate_6_grams: float | None = 0.14
    duplicate_7_grams: float | None = 0.13
    duplicate_8_grams: float | None = 0.12
    duplicate_9_grams: float | None = 0.11
    duplicate_10_grams: float | None = 0.10

    def __post_init__(self) -> None:
        require_shares(self, "gopher-repetition", *(field.name for field in fields(self)))

    def reasons(self, documents: Sequence[Document]) -> list[str | None]:
        broken = {at: rule for at, document in enumerate(documents) if (rule := self._of_lines(document.text))}
        rest = [at for at in range(len(documents)) if at not in broken]
        broken |= {rest[at]: rule for at, rule in self._of_words([documents[at].text for at in rest]).items()}
        return [self._told(broken[at]) if at in broken else None for at in range(len(documents))]

    def _told(self, rule: str) -> str:
        return f"gopher-repetition: {rule.replace('_', ' ')} above {getattr(self, rule):.0%}"

    def _of_lines(self, text: str) -> str | None:
        """Return the first broken rule about lines and paragraphs, or None."""
        shares = _duplicate_shares(lines_of(text))
        if shares == (0, 0):  # without duplicate lines there are no duplicate paragraphs
            return None
        names = ("lines", "line_characters", "paragraphs", "paragraph_characters")
        for name, share in zip(names, (*shares, *_duplicate_shares(paragraphs_of(text))), strict=True):
            most = getattr(self, f"duplicate_{name}")
            if most is not None and share > most:
                return f"duplicate_{name}"
        return None

    def _of_words(self, texts: Sequence[str]) -> dict[int, str]:
        """Return index of a text -> the first broken rule about n-grams, for texts that break one."""
        words, firsts = words_of(texts, fold=False, split="spaces")
        total = per_text(np.add, words.lengths, firsts)
        broken: dict[int, str] = {}
        for size, most in self._rules("top_{}_gram", TOP):
            over = Runs.of(words, firsts, size).of_most_frequent() > most * total
            broken = dict.fromkeys(np.flatnonzero(over).tolist(), f"top_{size}_gram") | broken
        rules = self._rules("duplicate_{}_grams", DUPLICATE)
        return self._of_duplicates(texts, words, firsts, rules) | broken

    def _of_duplicates(
        self, texts: Sequence[str], words: Words, firsts: np.ndarray, rules: Sequence[tuple[int, float]]
    ) -> dict[int, str]:
        """Return index of a text -> the first broken rule about duplicate n-grams.

        Each duplicate 6-gram consists of duplicate 5-grams, and so on. So a text with few characters in short
        duplicates satisfies all later rules and is not checked again.
        """
        if not rules:
            return {}
        (size, most), *later = rules
        total = per_text(np.add, words.lengths, firsts)
        again = Runs.of(words, firsts, size).of_later()
        over = again > most * total
        broken = dict.fromkeys(np.flatnonzero(over).tolist(), f"duplicate_{size}_grams")
        left = np.flatnonzero(~over & (again > min(share for _, share in rules) * total)).tolist()
        if left:
            some = [texts[at] for at in left]
            found = self._of_duplicates(some, *words_of(some, fold=False, split="spaces"), later)
            broken |= {left[at]: rule for at, rule in found.items()}
        return broken

    def _rules(self, name: str, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Return (n-gram size, maximum share) of the rules that are enabled."""
        rules = [(size, getattr(self, name.format(size))) for size in sizes]
        return [(size, most) for size, most in rules if most is not None]


def _duplicate_shares(parts: Sequence[str]) -> tuple[float, float]:
    """Return the share of duplicate lines or paragraphs, and the share of their characters."""
    different = set(parts)
    if len(different) == len(parts):
        return 0, 0
    characters = sum(map(len, parts))
    return (len(parts) - len(different)) / len(parts), (characters - sum(map(len, different))) / characters
