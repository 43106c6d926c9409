"""Word boundaries of a text, and 64-bit hashes of words and n-grams, computed with numpy."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from data_pipeline.scripts import ALONE_RANGES, CLUSTER_RANGES, LETTER_MARKS, SYLLABLE_ENDS, UNSPACED

CLUSTERS_PER_WORD = 3
"""Number of letters, with their marks, that count as a word in an alphabet written without spaces."""
WordSplit = Literal["letters", "spaces"]

SEPARATOR, INSIDE, MARK, ALPHABETIC, ALONE, CLUSTER = range(6)
"""Kind of a character, for word boundaries: between words; inside a word; mark of the previous character; letter inside
a word; a word by itself, with its marks; or a third of a word, with its marks (`Words.is_cluster`)."""

CODES = 0x110000
SCRIPTS = 0x20000
"""Largest code point of alphabets; those above are Chinese characters or rare symbols."""

AT_ONCE = 1 << 14
"""Number of characters or words that are split at a time, so that intermediate arrays stay in the processor's cache."""
WORD_BYTES = 8
MAX_HASHED_BYTES = 128
"""Maximum bytes of a word that numpy hashes. The rest of longer words, such as URLs, is hashed one by one."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)
SHIFTS = np.array([30, 27, 31], np.uint64)
FACTORS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
# FIRST_BYTES[n] masks the first n of eight bytes; all for n >= 8. A negative n indexes from the end, where masks are 0.
FIRST_BYTES = np.zeros(2 * MAX_HASHED_BYTES + 1, np.uint64)
FIRST_BYTES[: MAX_HASHED_BYTES + 1] = [(1 << 8 * min(count, WORD_BYTES)) - 1 for count in range(MAX_HASHED_BYTES + 1)]


class Words:
    """Words of a text, in order.

    - `split="letters"`: a word is a run of letters, marks and digits, without punctuation.
    - `split="spaces"`: a word is anything between white space.
    - In both, these are words by themselves: a Chinese character, a kana, and in Thai and other scripts without spaces
      a letter with the marks that follow it (`is_cluster`).
    - `fold`: hashes ignore case.

    The hash of a word depends only on its characters, not on its position or the machine.
    """

    starts: np.ndarray
    """Offset of the first byte of each word in the UTF-8 text, int32 [words]."""
    ends: np.ndarray
    """Offset after the last byte of each word, int32 [words]."""

    def __init__(self, text: str, *, fold: bool = True, split: WordSplit = "letters") -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        self._encoded, self._fold, self._split, self._ascii = encoded, fold, split, len(encoded) == len(text)
        self._text = "" if self._ascii else text
        self.starts, self.ends = self._word_bounds()

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Lengths of the words in characters, int32 [words]."""
        lengths = self.ends - self.starts
        if not self._ascii and len(self):
            later = np.flatnonzero(self._is_continuation())
            word = np.maximum(np.searchsorted(self.starts, later, side="right") - 1, 0)
            word = word[(later < self.ends[word]) & (later > self.starts[word])]
            lengths -= np.bincount(word, minlength=len(self)).astype(np.int32)
        return lengths

    @cached_property
    def characters_before(self) -> np.ndarray:
        """Cumulative characters of the words before each word, int64 [words + 1]; the last entry is the total."""
        before = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, dtype=np.int64, out=before[1:])
        return before

    def characters(self, offsets: np.ndarray) -> np.ndarray:
        """Convert byte offsets in a text to character offsets: int32, in the shape of `offsets`."""
        if self._ascii:
            return offsets
        before = np.zeros(len(self._encoded) + 1, np.int32)
        np.cumsum(~self._is_continuation(), dtype=np.int32, out=before[1:])
        return before[offsets]

    def _is_continuation(self) -> np.ndarray:
        """Return whether each byte is a continuation byte of a character, bool [bytes]."""
        return (np.frombuffer(self._encoded, np.uint8) & 0xC0) == 0x80

    @cached_property
    def hashes(self) -> np.ndarray:
        """Hashes of the words, uint64 [words]."""
        encoded = self._lowercase()
        padded = encoded + bytes(MAX_HASHED_BYTES)
        eight = np.ndarray(len(padded) - WORD_BYTES + 1, "<u8", padded, strides=(1,))
        hashes = np.empty(len(self), np.uint64)
        for begin in range(0, len(self), AT_ONCE):
            block = slice(begin, begin + AT_ONCE)
            hashes[block] = _hash_words(eight, self.starts[block], self.ends[block] - self.starts[block])
        for word in np.flatnonzero(self.ends - self.starts > MAX_HASHED_BYTES):
            remainder = encoded[self.starts[word] + MAX_HASHED_BYTES : self.ends[word]]
            hashes[word] ^= np.uint64(int.from_bytes(hashlib.blake2b(remainder, digest_size=8).digest(), "little"))
        return hashes

    def ngrams(self, size: int) -> np.ndarray:
        """Return the hash of each n-gram of `size` words, uint64 [words - size + 1]; empty if there are fewer words."""
        count = len(self) - size + 1
        if count < 1:
            return np.empty(0, np.uint64)
        grams = self.hashes[:count].copy()
        for offset in range(1, size):
            grams *= MULTIPLIER
            grams += self.hashes[offset : offset + count]
        return _mix_bits(grams)

    @cached_property
    def alphabetic(self) -> np.ndarray:
        """Whether each word contains a letter, bool [words]."""
        if not len(self):
            return np.empty(0, bool)
        return np.maximum.reduceat(self._kinds_by_byte(), self.starts) >= ALPHABETIC

    @cached_property
    def is_cluster(self) -> np.ndarray:
        """Whether each word is a letter of an alphabet without spaces, bool [words]."""
        if self._ascii or not (self._non_ascii_characters[2] == CLUSTER).any():
            return np.zeros(len(self), bool)
        return self._kinds_by_byte()[self.starts] == CLUSTER

    def _word_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and ends of words: where kinds change, and around each character that is a word by itself."""
        inside = np.zeros(len(self._encoded) + 2, bool)
        inside[1:-1] = self._kinds_by_byte()
        cuts = inside[1:] != inside[:-1]
        if self._ascii:
            edges = np.flatnonzero(cuts).astype(np.int32)
            return edges[::2], edges[1::2]
        leads, widths, kinds = self._non_ascii_characters
        if kinds.max() >= ALONE:
            ends = leads + widths
            is_joined = kinds == MARK
            is_joined[1:] &= leads[1:] == ends[:-1]
            firsts = np.flatnonzero(~is_joined)
            lasts = np.append(firsts[1:], len(kinds)) - 1
            alone = kinds[firsts] >= ALONE
            cuts[leads[firsts[alone]]] = True
            cuts[ends[lasts[alone]]] = True
        edges = np.flatnonzero(cuts).astype(np.int32)
        words = inside[1:][edges[:-1]]
        return edges[:-1][words], edges[1:][words]

    def _kinds_by_byte(self) -> np.ndarray:
        """Return the kind of the character that each byte of the text belongs to, uint8 [bytes]."""
        kinds = np.frombuffer(self._encoded.translate(_kinds_of_bytes(self._split)), np.uint8)
        if self._ascii:
            return kinds
        kinds = kinds.copy()
        leads, widths, their_kinds = self._non_ascii_characters
        for offset in range(4):
            wide = widths > offset
            kinds[leads[wide] + offset] = their_kinds[wide]
        return kinds

    @cached_property
    def _non_ascii_characters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First byte, number of bytes and kind of each character above 127."""
        leads = np.flatnonzero(np.frombuffer(self._encoded, np.uint8) >= 0xC0)
        codes = _codes_beyond_ascii(self._text)
        return leads, _utf8_lengths(codes), _kinds_of_codes(self._split)[codes]

    def _lowercase(self) -> bytes:
        """Return a text in lower case. Letters whose lower case has another number of bytes are unchanged."""
        if not self._fold:
            return self._encoded
        if self._ascii:
            return self._encoded.lower()
        codes = _codes_beyond_ascii(self._text)
        small = _small_letters()[codes]
        changed = np.flatnonzero((small != codes) & (_utf8_lengths(small) == _utf8_lengths(codes)))
        folded = np.frombuffer(self._encoded.lower(), np.uint8).copy()
        _overwrite_characters(folded, self._non_ascii_characters[0][changed], small[changed])
        return folded.tobytes()


def split_into_words(
    texts: Sequence[str], *, fold: bool = True, split: WordSplit = "letters"
) -> tuple[Words, np.ndarray]:
    """Split texts into words: return the words of all texts, concatenated, and int64 [texts + 1]: index of the first
    word of each text.

    Joint processing is several times as fast for short texts. Some n-grams extend from one text into the next.
    """
    sizes = [len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts]
    words = Words("\n".join(texts), fold=fold, split=split)
    text_starts = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64) + 1)))
    return words, np.searchsorted(words.starts, text_starts)


def reduce_per_text(gather: np.ufunc, values: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Reduce values per word to values per text: their sum (`np.add`) or maximum (`np.maximum`); 0 for a text without
    words."""
    gathered = np.zeros(len(firsts) - 1, np.int64)
    has_words = np.diff(firsts) > 0
    if has_words.any():
        gathered[has_words] = gather.reduceat(values, firsts[:-1][has_words], dtype=np.int64)
    return gathered


def surplus_words(words: Words, firsts: np.ndarray) -> np.ndarray:
    """Return for each text the number of words to subtract from its count, because CLUSTERS_PER_WORD clusters count as
    one word, float64 [texts]."""
    clusters = reduce_per_text(np.add, words.is_cluster, firsts)
    return clusters - clusters / CLUSTERS_PER_WORD


def ngram_factors(words: Words, firsts: np.ndarray) -> np.ndarray:
    """Return for each text the factor of n-gram sizes, int64 [texts]: CLUSTERS_PER_WORD if most of its words are
    clusters, else 1."""
    is_cluster_text = 2 * reduce_per_text(np.add, words.is_cluster, firsts) > np.diff(firsts)
    return np.where(is_cluster_text, CLUSTERS_PER_WORD, 1)


def has_words(text: str, count: int) -> bool:
    """Whether a text has at least `count` words, separated by white space or in a script without spaces."""
    if len(text.split(None, count)) >= count:
        return True
    if text.isascii() or not UNSPACED.search(text):
        return False
    words, firsts = split_into_words([text], fold=False, split="spaces")
    return len(words) - float(surplus_words(words, firsts)[0]) >= count


def _hash_words(eight: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the hashes of the first MAX_HASHED_BYTES of words and of their sizes, uint64 [words], from the eight bytes
    at each offset: the first sixteen bytes at once, then the rest."""
    own = np.minimum(sizes, MAX_HASHED_BYTES)
    hashes = eight[starts] & FIRST_BYTES[own]
    hashes *= MULTIPLIER
    hashes ^= hashes >> HALF
    hashes += eight[starts + WORD_BYTES] & FIRST_BYTES[own - WORD_BYTES]
    hashes *= MULTIPLIER
    hashes += sizes.astype(np.uint64)
    longer = np.flatnonzero(own > 2 * WORD_BYTES)
    if len(longer):
        left = own[longer, None]
        offsets = np.arange(2 * WORD_BYTES, int(left.max()), WORD_BYTES, dtype=np.int32)
        read = eight[starts[longer, None] + offsets] & FIRST_BYTES[left - offsets]
        hashes[longer] += np.add.reduce(_mix_bits(read + offsets.astype(np.uint64)), axis=1)
    return _mix_bits(hashes)


def _codes_beyond_ascii(text: str) -> np.ndarray:
    """Return the code points of a text above 127, in order, as uint32."""
    above_ascii = []
    for start in range(0, len(text), AT_ONCE):
        codes = np.frombuffer(text[start : start + AT_ONCE].encode("utf-32-le", "surrogatepass"), "<u4")
        above_ascii.append(codes[codes > 127])
    return np.concatenate(above_ascii)


def _utf8_lengths(codes: np.ndarray) -> np.ndarray:
    """Return the number of UTF-8 bytes of each code point above 127."""
    return 2 + (codes > 0x7FF) + (codes > 0xFFFF)


def _overwrite_characters(encoded: np.ndarray, leads: np.ndarray, codes: np.ndarray) -> None:
    """Overwrite characters in place with others of the same number of UTF-8 bytes."""
    widths, codes = _utf8_lengths(codes), codes.copy()
    for offset in (3, 2, 1):
        wide = widths > offset
        encoded[leads[wide] + offset] = 0x80 | (codes[wide] & 0x3F)
        codes[wide] >>= 6
    encoded[leads] = (0xF00 >> widths & 0xFF) | codes


@lru_cache(maxsize=2)
def _kinds_of_bytes(split: WordSplit) -> bytes:
    """Return a table for `bytes.translate`: kind of each ASCII byte, 0 for others."""
    return _kinds_of_codes(split)[:128].tobytes() + bytes(128)


@lru_cache(maxsize=2)
def _kinds_of_codes(split: WordSplit) -> np.ndarray:
    """Return the kind of each character for word boundaries, uint8 [CODES]."""
    characters = np.arange(CODES, dtype=np.uint32).view("U1")
    if split == "spaces":
        kinds = np.where(np.strings.isspace(characters), SEPARATOR, INSIDE).astype(np.uint8)
        marks = {"Mn", "Mc", "Me", "Cf"}
    else:
        kinds = np.where(np.strings.isalnum(characters), INSIDE, SEPARATOR).astype(np.uint8)
        marks = {"Mn", "Mc", "Me"}
    letters = np.strings.isalpha(characters)
    kinds[letters] = ALPHABETIC
    # Vowel signs and accents, and invisible characters such as spaces without width.
    kinds[[code for code in range(SCRIPTS) if unicodedata.category(chr(code)) in marks]] = MARK
    kinds[[*SYLLABLE_ENDS]] = SEPARATOR
    for first, last in ALONE_RANGES:
        kinds[first : last + 1] = ALONE
    for first, last in CLUSTER_RANGES:
        kinds[first : last + 1][letters[first : last + 1]] = CLUSTER
    kinds[[*LETTER_MARKS]] = MARK
    return kinds


@lru_cache(maxsize=1)
def _small_letters() -> np.ndarray:
    """Return a table of the lower-case code point of each capital, and any other code point unchanged, uint32
    [CODES]."""
    small = np.arange(CODES, dtype=np.uint32)
    small[:SCRIPTS] = np.strings.lower(small[:SCRIPTS].view("U1")).view(np.uint32)
    return small


def _mix_bits(values: np.ndarray) -> np.ndarray:
    """Mix the bits of word hashes in place so that each bit affects all bits (finalizer of SplitMix64)."""
    values ^= values >> SHIFTS[0]
    values *= FACTORS[0]
    values ^= values >> SHIFTS[1]
    values *= FACTORS[1]
    values ^= values >> SHIFTS[2]
    return values
