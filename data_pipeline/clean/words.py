"""Where the words of a text begin and end, and 64-bit hashes of words and of runs of words, by numpy."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

WordSplit = Literal["letters", "spaces"]

BETWEEN, INSIDE, ALPHABETIC, ALONE = range(4)
"""What a character is to words: between them, in one, in one and a letter, a word of its own."""

# Scripts written without spaces, where what texts can share is a run of characters.
ALONE_RANGES = ((0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
CODES = 0x110000
SCRIPTS = 0x20000
"""Beyond are Chinese characters, and what no one writes."""

AT_ONCE = 1 << 14
"""Characters or words: few enough for what is computed from them to stay in the cache."""
EIGHT = 8
LONGEST = 128
"""Bytes of a word that are hashed, beside its length: what is longer is no word."""
ODD = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)
SHIFTS = np.array([30, 27, 31], np.uint64)
FACTORS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
# FIRST_BYTES[n] keeps the first n of eight bytes, all from 8 on; n < 0 counts from the array's end and keeps none.
FIRST_BYTES = np.zeros(2 * LONGEST + 1, np.uint64)
FIRST_BYTES[: LONGEST + 1] = [(1 << 8 * min(count, EIGHT)) - 1 for count in range(LONGEST + 1)]


class Words:
    """The words of a text, in order.

    `split="letters"`: runs of letters, marks and digits; punctuation is no part of them. `split="spaces"`: whatever
    stands between white space. In both, a Chinese character or a kana is a word of its own. `fold`: a capital hashes
    as its small letter. The hash of a word depends on its characters alone: not on its place or on the machine.
    """

    starts: np.ndarray
    """int32 [words]: first byte of each, in the UTF-8 of the text."""
    ends: np.ndarray
    """int32 [words]: the byte after its last."""

    def __init__(self, text: str, *, fold: bool = True, split: WordSplit = "letters") -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        self._encoded, self._fold, self._split, self._ascii = encoded, fold, split, len(encoded) == len(text)
        self._text = "" if self._ascii else text
        self.starts, self.ends = self._boundaries()

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 [words]: characters."""
        lengths = self.ends - self.starts
        if not self._ascii and len(self):
            later = np.flatnonzero(self._is_later())
            word = np.maximum(np.searchsorted(self.starts, later, side="right") - 1, 0)
            word = word[(later < self.ends[word]) & (later > self.starts[word])]
            lengths -= np.bincount(word, minlength=len(self)).astype(np.int32)
        return lengths

    @cached_property
    def characters_before(self) -> np.ndarray:
        """int64 [words + 1]: characters of the words before each; the last is those of all."""
        before = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, dtype=np.int64, out=before[1:])
        return before

    def characters(self, places: np.ndarray) -> np.ndarray:
        """int32, as `places`: the characters before these bytes of the text."""
        if self._ascii:
            return places
        before = np.zeros(len(self._encoded) + 1, np.int32)
        np.cumsum(~self._is_later(), dtype=np.int32, out=before[1:])
        return before[places]

    def _is_later(self) -> np.ndarray:
        """bool [bytes]: is it not the first byte of its character?"""
        return (np.frombuffer(self._encoded, np.uint8) & 0xC0) == 0x80

    @cached_property
    def hashes(self) -> np.ndarray:
        """uint64 [words]."""
        padded = self._folded() + bytes(LONGEST)
        eight = np.ndarray(len(padded) - EIGHT + 1, "<u8", padded, strides=(1,))
        hashes = np.empty(len(self), np.uint64)
        for begin in range(0, len(self), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            hashes[some] = _hash(eight, self.starts[some], self.ends[some] - self.starts[some])
        return hashes

    def ngrams(self, size: int) -> np.ndarray:
        """uint64 [words - size + 1]: a hash of each run of `size` words; empty when there are fewer."""
        count = len(self) - size + 1
        if count < 1:
            return np.empty(0, np.uint64)
        grams = self.hashes[:count].copy()
        for place in range(1, size):
            grams *= ODD
            grams += self.hashes[place : place + count]
        return _mix(grams)

    @cached_property
    def alphabetic(self) -> np.ndarray:
        """bool [words]: has the word a letter?"""
        if not len(self):
            return np.empty(0, bool)
        return np.maximum.reduceat(self._kinds(), self.starts) >= ALPHABETIC

    def _boundaries(self) -> tuple[np.ndarray, np.ndarray]:
        """Where between and inside meet; and, in texts that are not ASCII, around the characters that stand alone."""
        inside = np.zeros(len(self._encoded) + 2, bool)
        inside[1:-1] = self._kinds()
        cuts = inside[1:] != inside[:-1]
        if self._ascii:
            edges = np.flatnonzero(cuts).astype(np.int32)
            return edges[::2], edges[1::2]
        leads, widths, kinds = self._beyond_ascii
        alone = kinds == ALONE
        cuts[leads[alone]] = True
        cuts[leads[alone] + widths[alone]] = True
        edges = np.flatnonzero(cuts).astype(np.int32)
        words = inside[1:][edges[:-1]]
        return edges[:-1][words], edges[1:][words]

    def _kinds(self) -> np.ndarray:
        """uint8 [bytes]: what the character that each byte belongs to is to words."""
        kinds = np.frombuffer(self._encoded.translate(_kinds_of_bytes(self._split)), np.uint8)
        if self._ascii:
            return kinds
        kinds = kinds.copy()
        leads, widths, their_kinds = self._beyond_ascii
        for place in range(4):
            wide = widths > place
            kinds[leads[wide] + place] = their_kinds[wide]
        return kinds

    @cached_property
    def _beyond_ascii(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First byte, number of bytes and kind of each character that takes several."""
        leads = np.flatnonzero(np.frombuffer(self._encoded, np.uint8) >= 0xC0)
        codes = _codes_beyond_ascii(self._text)
        return leads, _widths(codes), _kinds_of_codes(self._split)[codes]

    def _folded(self) -> bytes:
        """The text with small letters for capitals, but for the few where one takes more bytes than the other."""
        if not self._fold:
            return self._encoded
        if self._ascii:
            return self._encoded.lower()
        codes = _codes_beyond_ascii(self._text)
        small = _small_letters()[codes]
        changed = np.flatnonzero((small != codes) & (_widths(small) == _widths(codes)))
        folded = np.frombuffer(self._encoded.lower(), np.uint8).copy()
        _overwrite(folded, self._beyond_ascii[0][changed], small[changed])
        return folded.tobytes()


def words_of(texts: Sequence[str], *, fold: bool = True, split: WordSplit = "letters") -> tuple[Words, np.ndarray]:
    """The words of several texts as of one, and the first word of each text, int64 [texts + 1].

    Short texts are read several times as fast together as one by one. Some n-grams run from one into the next.
    """
    sizes = [len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts]
    words = Words("\n".join(texts), fold=fold, split=split)
    begins = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64) + 1)))
    return words, np.searchsorted(words.starts, begins)


def per_text(gather: np.ufunc, values: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Sums (`np.add`) or maxima (`np.maximum`) of the words' values in each text; 0 where a text has none."""
    gathered = np.zeros(len(firsts) - 1, np.int64)
    has_words = np.diff(firsts) > 0
    if has_words.any():
        gathered[has_words] = gather.reduceat(values, firsts[:-1][has_words], dtype=np.int64)
    return gathered


def _hash(eight: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """uint64 [words], given the eight bytes that begin at each byte of the text: sixteen at once, then the rest."""
    own = np.minimum(sizes, LONGEST)
    hashes = eight[starts] & FIRST_BYTES[own]
    hashes *= ODD
    hashes ^= hashes >> HALF
    hashes += eight[starts + EIGHT] & FIRST_BYTES[own - EIGHT]
    hashes *= ODD
    hashes += sizes.astype(np.uint64)
    longer = np.flatnonzero(own > 2 * EIGHT)
    if len(longer):
        left = own[longer, None]
        places = np.arange(2 * EIGHT, int(left.max()), EIGHT, dtype=np.int32)
        read = eight[starts[longer, None] + places] & FIRST_BYTES[left - places]
        hashes[longer] += np.add.reduce(_mix(read + places.astype(np.uint64)), axis=1)
    return _mix(hashes)


def _codes_beyond_ascii(text: str) -> np.ndarray:
    """uint32: the code points above 127, in order."""
    found = []
    for start in range(0, len(text), AT_ONCE):
        codes = np.frombuffer(text[start : start + AT_ONCE].encode("utf-32-le", "surrogatepass"), "<u4")
        found.append(codes[codes > 127])
    return np.concatenate(found)


def _widths(codes: np.ndarray) -> np.ndarray:
    """Bytes that each code point above 127 takes in UTF-8."""
    return 2 + (codes > 0x7FF) + (codes > 0xFFFF)


def _overwrite(encoded: np.ndarray, leads: np.ndarray, codes: np.ndarray) -> None:
    """Put these code points, in UTF-8, where others of as many bytes stand."""
    widths, codes = _widths(codes), codes.copy()
    for place in (3, 2, 1):
        wide = widths > place
        encoded[leads[wide] + place] = 0x80 | (codes[wide] & 0x3F)
        codes[wide] >>= 6
    encoded[leads] = (0xF00 >> widths & 0xFF) | codes


@lru_cache(maxsize=2)
def _kinds_of_bytes(split: WordSplit) -> bytes:
    """A table for `bytes.translate`; the bytes of characters beyond ASCII stand for nothing yet."""
    return _kinds_of_codes(split)[:128].tobytes() + bytes(128)


@lru_cache(maxsize=2)
def _kinds_of_codes(split: WordSplit) -> np.ndarray:
    """uint8 [CODES]: what each character is to words."""
    characters = np.arange(CODES, dtype=np.uint32).view("U1")
    if split == "spaces":
        kinds = np.where(np.strings.isspace(characters), BETWEEN, INSIDE).astype(np.uint8)
    else:
        kinds = np.where(np.strings.isalnum(characters), INSIDE, BETWEEN).astype(np.uint8)
        # Vowel signs, and accents that follow their letter.
        kinds[[code for code in range(SCRIPTS) if unicodedata.category(chr(code))[0] == "M"]] = INSIDE
    kinds[np.strings.isalpha(characters)] = ALPHABETIC
    for first, last in ALONE_RANGES:
        kinds[first : last + 1] = ALONE
    return kinds


@lru_cache(maxsize=1)
def _small_letters() -> np.ndarray:
    """uint32 [CODES]: the small letter of each capital, every other character itself."""
    small = np.arange(CODES, dtype=np.uint32)
    small[:SCRIPTS] = np.strings.lower(small[:SCRIPTS].view("U1")).view(np.uint32)
    return small


def _mix(values: np.ndarray) -> np.ndarray:
    """Every bit of a value changes every bit of the result (the finalizer of SplitMix64); in place."""
    values ^= values >> SHIFTS[0]
    values *= FACTORS[0]
    values ^= values >> SHIFTS[1]
    values *= FACTORS[1]
    values ^= values >> SHIFTS[2]
    return values
