"""Document quality rules of MassiveText (Gopher; Rae et al., 2021, arXiv:2112.11446, appendix A.1.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_pipeline.clean.lines import text_lines
from data_pipeline.clean.step import BatchFilter, require_minimum, require_shares
from data_pipeline.clean.words import reduce_per_text, split_into_words, surplus_words
from data_pipeline.document import Document
from data_pipeline.scripts import UNSPACED

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLETS = ("•", "-", "‣", "*", "◦", "●", "▪", "■")
ELLIPSES = ("...", "…")
FIRST_WORDS = 100


@dataclass(frozen=True)
class GopherQuality(BatchFilter):
    """Drop text that does not look like prose. Defaults are those of the paper; `null` disables a rule.

    The rules are for English. In Chinese each character counts as a word: set `min_mean_word_length` to 1. In Thai and
    other alphabets without spaces, three letters count as a word. Other languages need other stop words.
    """

    min_words: int | None = 50
    max_words: int | None = 100_000
    min_mean_word_length: float | None = 3
    """Mean word length of a document, in characters."""
    max_mean_word_length: float | None = 10
    max_symbols_per_word: float | None = 0.1
    """Maximum number of hash signs per word, and of ellipses per word."""
    max_bullet_line_share: float | None = 0.9
    """Maximum share of lines that start with a bullet. Blank lines are not counted."""
    max_ellipsis_line_share: float | None = 0.3
    """Maximum share of lines that end with an ellipsis. Blank lines are not counted."""
    min_alphabetic_word_share: float | None = 0.8
    """Minimum share of the words of a document that contain a letter."""
    min_stop_words: int | None = 2
    """Minimum number of different stop words in a document."""
    stop_words: tuple[str, ...] = STOP_WORDS

    def __post_init__(self) -> None:
        require_minimum(
            0, self, "gopher-quality", "min_words", "min_mean_word_length", "max_symbols_per_word", "min_stop_words"
        )
        require_minimum(1, self, "gopher-quality", "max_words", "max_mean_word_length")
        require_shares(
            self, "gopher-quality", "max_bullet_line_share", "max_ellipsis_line_share", "min_alphabetic_word_share"
        )

    def reasons(self, documents: Sequence[Document]) -> Iterator[str | None]:
        words, firsts = split_into_words([document.text for document in documents], fold=False, split="spaces")
        surplus = surplus_words(words, firsts)
        counts = (np.diff(firsts) - surplus).tolist()
        characters = reduce_per_text(np.add, words.lengths, firsts).tolist()
        alphabetic = (reduce_per_text(np.add, words.alphabetic, firsts) - surplus).tolist()
        for document, *numbers in zip(documents, counts, characters, alphabetic, strict=True):
            fault = self._word_reason(*numbers) or self._symbol_reason(document.text, words=numbers[0])
            yield fault and f"gopher-quality: {fault}"

    def _word_reason(self, words: float, characters: int, alphabetic: float) -> str | None:
        if self.min_words is not None and words < self.min_words:
            return f"fewer than {self.min_words:,} words"
        if self.max_words is not None and words > self.max_words:
            return f"more than {self.max_words:,} words"
        if not words:
            return None
        if self.min_mean_word_length is not None and characters / words < self.min_mean_word_length:
            return f"mean word length below {self.min_mean_word_length:g}"
        if self.max_mean_word_length is not None and characters / words > self.max_mean_word_length:
            return f"mean word length above {self.max_mean_word_length:g}"
        if self.min_alphabetic_word_share is not None and alphabetic / words < self.min_alphabetic_word_share:
            return f"less than {self.min_alphabetic_word_share:.0%} of words with a letter"
        return None

    def _symbol_reason(self, text: str, *, words: float) -> str | None:
        if self.max_symbols_per_word is not None:
            if text.count("#") > self.max_symbols_per_word * words:
                return f"more than {self.max_symbols_per_word:g} hash signs per word"
            if _count_ellipses(text) > self.max_symbols_per_word * words:
                return f"more than {self.max_symbols_per_word:g} ellipses per word"
        return self._line_reason(text) or self._stop_word_reason(text)

    def _line_reason(self, text: str) -> str | None:
        lines, max_share = text_lines(text), self.max_bullet_line_share
        if max_share is not None and _exceeds_share(
            max_share, lines, sum(map(text.count, BULLETS)), _starts_with_bullet
        ):
            return f"more than {max_share:.0%} of lines start with a bullet"
        max_share = self.max_ellipsis_line_share
        if max_share is not None and _exceeds_share(max_share, lines, _count_ellipses(text), _ends_with_ellipsis):
            return f"more than {max_share:.0%} of lines end with an ellipsis"
        return None

    def _stop_word_reason(self, text: str) -> str | None:
        min_count = self.min_stop_words
        if min_count and _count_different(text, self.stop_words, enough=min_count) < min_count:
            return f"fewer than {min_count} stop words"
        return None


def _exceeds_share(max_share: float, lines: list[str], marks: int, has_mark: Callable[[str], bool]) -> bool:
    """Whether more than a share `max_share` of a text's lines start or end with a mark. Lines are only checked if the
    text has enough marks."""
    limit = max_share * len(lines)
    return marks > limit and sum(map(has_mark, lines)) > limit


def _starts_with_bullet(line: str) -> bool:
    return line.lstrip().startswith(BULLETS)


def _ends_with_ellipsis(line: str) -> bool:
    return line.endswith(ELLIPSES)


def _count_ellipses(text: str) -> int:
    return sum(map(text.count, ELLIPSES))


def _count_different(text: str, words: tuple[str, ...], *, enough: int) -> int:
    """Count the different `words` that the text contains, ignoring case, up to `enough`.

    Most texts contain them in their first hundred words. Only if not, the full text is searched.
    """
    different = set(words).intersection(map(str.lower, text.split(None, FIRST_WORDS)[:FIRST_WORDS]))
    for match in _any_of(words).finditer(text) if len(different) < enough else ():
        different.add(match[0].lower())
        if len(different) >= enough:
            break
    return len(different)


@lru_cache(maxsize=8)
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    unspaced = [re.escape(word) for word in words if UNSPACED.search(word)]  # may have letters on both sides
    spaced = [re.escape(word) for word in words if not UNSPACED.search(word)]
    return re.compile("|".join([rf"\b(?:{'|'.join(spaced)})\b", *unspaced]), re.IGNORECASE)
