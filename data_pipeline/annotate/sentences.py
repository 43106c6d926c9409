"""Sentence starts by rules instead of a model, so that every machine gives the same result. Used by BERT's
next-sentence pairs."""

from __future__ import annotations

import re

import numpy as np

# A sentence ends with an end mark, closing quotes and white space (not needed after Chinese and Japanese marks), or
# with a blank line. Matches start with the first of several marks: starting at each of them takes quadratic time.
PROSE_END = re.compile(
    r"\n[ \t]*\n\s*|(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s+|[。！？]+[」』”’）]*\s*"  # noqa: RUF001
)
CODE_END = re.compile(r"(?<!\n)\n++(?=[^\n])")
OPENING = "\"'“‘«([{*_`-"  # noqa: RUF001

# A period after one of these, or after a single letter, does not end a sentence.
ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|st|[sj]r|vs|etc|e\.g|i\.e|cf|al|figs?|eqs?|nos?|vol|ch|sec|pp|eds?|inc|ltd|corp|co|dept|est|approx|"
    r"jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun|[^\W\d_]",
    re.IGNORECASE,
)
LAST_WORD = re.compile(r"[\w.]*\w(?=\.\s*$)")
MAX_ABBREVIATION = 20


def sentence_starts(text: str, form: str = "prose") -> np.ndarray:
    """Return the start of each sentence of prose, or of each line of code, int64 [sentences]."""
    starts = np.array([0, *(_starts_in_code(text) if form == "code" else _starts_in_prose(text))], dtype=np.int64)
    return np.unique(starts[starts < len(text)])


def _starts_in_code(text: str) -> list[int]:
    return [match.end() for match in CODE_END.finditer(text)]


def _starts_in_prose(text: str) -> list[int]:
    return [match.end() for match in PROSE_END.finditer(text) if _ends_a_sentence(text, match)]


def _ends_a_sentence(text: str, match: re.Match[str]) -> bool:
    mark = match[0]
    if mark[0] in "\n。！？":  # noqa: RUF001
        return True
    following = text[match.end() : match.end() + 5].lstrip(OPENING)
    if following[:1].islower():
        return False
    if mark.rstrip() != ".":
        return True
    word = LAST_WORD.search(text[max(0, match.start() - MAX_ABBREVIATION) : match.end()])
    return word is None or ABBREVIATION.fullmatch(word[0]) is None
