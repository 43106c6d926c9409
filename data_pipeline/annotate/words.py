"""Word starts in a text, independent of the tokenizer.

The rule is BERT's (arXiv:1810.04805, the released `tokenization.py`): white space separates words, and a punctuation
mark or a Chinese character is a word. In addition, each Japanese kana is a word, and each letter of Thai and other
alphabets without spaces with the marks that follow it (`data_pipeline.scripts`). White space is a word, too, for
tokenizers that have tokens of white space only.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from data_pipeline.annotate.dictionary import read_dictionary
from data_pipeline.functions import is_function, load_function
from data_pipeline.scripts import ALONE_RANGES, CLUSTER_RANGES, LETTER_MARKS
from megaptm.errors import UserError
from megaptm.tokenizers import find_first_tokens

SPACE, LETTER, ALONE, JOINED = range(4)
"""Kind of a character, for word boundaries. A run of SPACE or LETTER is one word, each ALONE is a word, and JOINED
extends the character before it."""

# Blocks that BERT treats as Chinese.
HAN = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
ASCII_MARKS = ((33, 47), (58, 64), (91, 96), (123, 126))
HAN_RUN = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in HAN) + "]{2,}")


def word_starts(text: str, ends: np.ndarray, chinese: str = "characters") -> np.ndarray:
    """Return int32 [words or fewer]: first token of each word of a text, for tokens that end at these offsets.

    Each word is within the tokens from one start to the next. Words that share a token are merged.
    """
    kinds = _kinds_of(text)
    offsets = _word_offsets(text, kinds, chinese)
    starts = find_first_tokens(ends, offsets)
    # A token may end one word and start another. A cut before it would break the first word. A character that extends
    # the one before it may have no token: BERT drops accents.
    is_start = (kinds == SPACE) | (kinds == JOINED)
    is_start[offsets] = True
    firsts = np.concatenate(([0], ends[:-1]))[starts]
    return starts[is_start[firsts]]


def word_offsets(text: str, chinese: str = "characters") -> np.ndarray:
    """Return the first character of each word of a text, int64 [words]; `chinese` as in `Annotations`."""
    return _word_offsets(text, _kinds_of(text), chinese)


def capital_words(text: str) -> list[tuple[int, int, int]]:
    """Return (start, end, 0) in characters of each word of a text that starts with a capital letter."""
    borders = pairwise([*word_offsets(text).tolist(), len(text)])
    return [(first, stop, 0) for first, stop in borders if text[first].isupper()]


def _word_offsets(text: str, kinds: np.ndarray, chinese: str) -> np.ndarray:
    if text.isascii():
        return _kind_changes(kinds)
    own = np.flatnonzero(kinds != JOINED)
    offsets = own[_kind_changes(kinds[own])]
    if chinese != "characters":
        offsets = _merge_segmented(text, offsets, load_segmenter(chinese))
    # A combining character at the very start has no character before it.
    return offsets if len(offsets) and offsets[0] == 0 else np.concatenate(([0], offsets))


def _kind_changes(kinds: np.ndarray) -> np.ndarray:
    """Return the indexes of characters that are ALONE or differ in kind from the character before."""
    new = kinds == ALONE
    new[1:] |= kinds[1:] != kinds[:-1]
    new[:1] = True
    return np.flatnonzero(new)


def _kinds_of(text: str) -> np.ndarray:
    """Return the kind of each character of a text for word boundaries, int8 [characters]."""
    if text.isascii():
        return _kind_table()[np.frombuffer(text.encode(), dtype=np.uint8)]
    return _kind_table()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")]


@lru_cache(maxsize=1)
def _kind_table() -> np.ndarray:
    """Return the kind of each character, int8 [Unicode code points]."""
    kinds = np.full(sys.maxunicode + 1, LETTER, dtype=np.int8)
    for first, last in ALONE_RANGES:
        kinds[first : last + 1] = ALONE
    for first, last in CLUSTER_RANGES:
        kinds[[code for code in range(first, last + 1) if chr(code).isalpha()]] = ALONE
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category[0] == "P":
            kinds[code] = ALONE
        elif category[0] == "M":
            kinds[code] = JOINED
        elif chr(code).isspace():
            kinds[code] = SPACE
    kinds[[*LETTER_MARKS]] = JOINED
    for first, last in ASCII_MARKS:
        kinds[first : last + 1] = ALONE
    return kinds


def _merge_segmented(text: str, offsets: np.ndarray, segment: Callable[[str], Iterable[str]]) -> np.ndarray:
    """Remove the offsets of characters that do not start a word of the segmenter."""
    within = np.zeros(len(text) + 1, dtype=bool)
    for run in HAN_RUN.finditer(text):
        words = list(segment(run[0]))
        if "".join(words) != run[0]:
            raise UserError(
                f"annotate.chinese: the words of {run[0][:20]!r} do not concatenate to it: correct the function."
            )
        within[run.start() : run.end()] = True
        within[run.start() + np.cumsum([0, *map(len, words)])] = False
    return offsets[~within[offsets]]


def load_segmenter(name: str) -> Callable[[str], Iterable[str]]:
    """Return a word segmenter for Chinese, a function: text -> words whose concatenation is the text."""
    if name == "words":
        return _load_jieba()
    return load_function(name, "annotate.chinese") if is_function(name) else read_dictionary(name)


@lru_cache(maxsize=1)
def _load_jieba() -> Callable[[str], Iterable[str]]:
    try:
        import jieba
    except ImportError:
        raise UserError("annotate.chinese: `words` needs jieba: `pip install 'megaptm[chinese]'`.") from None
    jieba.setLogLevel("WARNING")
    return jieba.cut
