"""Repetition rules of MassiveText (Gopher; Rae et al., 2021, arXiv:2112.11446, appendix A.1.1, table A1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from data_pipeline.clean.lines import text_lines, text_paragraphs
from data_pipeline.clean.repeats import NGrams
from data_pipeline.clean.step import BatchFilter, require_shares
from data_pipeline.clean.words import Words, ngram_factors, reduce_per_text, split_into_words
from data_pipeline.document import Document

TOP_SIZES, DUPLICATE_SIZES = (2, 3, 4), (5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class GopherRepetition(BatchFilter):
    """Drop repetitive text. Each option is the maximum share, by default that of table A1; `null` disables a rule.

    A line, paragraph or n-gram is a duplicate if it occurred earlier in the text. Shares of characters refer to all
    characters of lines and paragraphs without trailing white space, or to all characters of words. Blank lines are
    ignored. In alphabets without spaces, such as Thai, a word of an n-gram is three letters.
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
        broken = {at: rule for at, document in enumerate(documents) if (rule := self._line_reason(document.text))}
        remaining = [at for at in range(len(documents)) if at not in broken]
        broken |= {
            remaining[at]: rule for at, rule in self._word_reasons([documents[at].text for at in remaining]).items()
        }
        return [self._format_reason(broken[at]) if at in broken else None for at in range(len(documents))]

    def _format_reason(self, rule: str) -> str:
        return f"gopher-repetition: {rule.replace('_', ' ')} above {getattr(self, rule):.0%}"

    def _line_reason(self, text: str) -> str | None:
        """Return the first broken rule about lines and paragraphs, or None."""
        shares = _duplicate_shares(text_lines(text))
        if shares == (0, 0):  # without duplicate lines there are no duplicate paragraphs
            return None
        names = ("lines", "line_characters", "paragraphs", "paragraph_characters")
        for name, share in zip(names, (*shares, *_duplicate_shares(text_paragraphs(text))), strict=True):
            max_share = getattr(self, f"duplicate_{name}")
            if max_share is not None and share > max_share:
                return f"duplicate_{name}"
        return None

    def _word_reasons(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the first broken rule about n-grams by index of the text, for texts that break one."""
        words, firsts = split_into_words(texts, fold=False, split="spaces")
        factors = ngram_factors(words, firsts)
        if len(set(factors.tolist())) > 1:
            indexes = [np.flatnonzero(factors == factor).tolist() for factor in np.unique(factors)]
            return {
                alike[at]: rule
                for alike in indexes
                for at, rule in self._word_reasons([texts[at] for at in alike]).items()
            }
        factor = int(factors.max(initial=1))
        total = reduce_per_text(np.add, words.lengths, firsts)
        broken: dict[int, str] = {}
        for size, max_share in self._enabled_rules("top_{}_gram", TOP_SIZES):
            over = NGrams.from_words(words, firsts, size * factor).top_characters() > max_share * total
            broken = dict.fromkeys(np.flatnonzero(over).tolist(), f"top_{size}_gram") | broken
        rules = self._enabled_rules("duplicate_{}_grams", DUPLICATE_SIZES)
        return self._duplicate_reasons(texts, words, firsts, rules, factor) | broken

    def _duplicate_reasons(
        self, texts: Sequence[str], words: Words, firsts: np.ndarray, rules: Sequence[tuple[int, float]], factor: int
    ) -> dict[int, str]:
        """Return index of a text -> the first broken rule about duplicate n-grams, whose sizes are times `factor`.

        Each duplicate 6-gram consists of duplicate 5-grams, and so on. So a text with few characters in short
        duplicates satisfies all later rules and is not checked again.
        """
        if not rules:
            return {}
        (size, max_share), *later = rules
        total = reduce_per_text(np.add, words.lengths, firsts)
        duplicated = NGrams.from_words(words, firsts, size * factor).duplicate_characters()
        over = duplicated > max_share * total
        broken = dict.fromkeys(np.flatnonzero(over).tolist(), f"duplicate_{size}_grams")
        remaining = np.flatnonzero(~over & (duplicated > min(share for _, share in rules) * total)).tolist()
        if remaining:
            remaining_texts = [texts[at] for at in remaining]
            broken_later = self._duplicate_reasons(
                remaining_texts, *split_into_words(remaining_texts, fold=False, split="spaces"), later, factor
            )
            broken |= {remaining[at]: rule for at, rule in broken_later.items()}
        return broken

    def _enabled_rules(self, name: str, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Return (n-gram size, maximum share) of the rules that are enabled."""
        rules = [(size, getattr(self, name.format(size))) for size in sizes]
        return [(size, max_share) for size, max_share in rules if max_share is not None]


def _duplicate_shares(parts: Sequence[str]) -> tuple[float, float]:
    """Return the share of duplicate lines or paragraphs, and the share of their characters."""
    different = set(parts)
    if len(different) == len(parts):
        return 0, 0
    characters = sum(map(len, parts))
    return (len(parts) - len(different)) / len(parts), (characters - sum(map(len, different))) / characters
