"""MinHash signatures, computed for many texts at a time.

One permutation hashing (Li, Owen and Zhang, 2012): the hash of a shingle gives a bin of the signature and a value, and
each bin keeps its minimum. So a shingle costs one operation instead of one per bin. An empty bin copies the value of
another bin (optimal densification, Shrivastava, 2017). The order in which it tries the others is specific to the bin
and equal for all texts. The probability that two texts agree on a bin is their Jaccard similarity, for any number of
shingles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from data_pipeline.clean.words import Words

NO_HASHES, NO_NUMBERS = np.empty(0, np.uint64), np.empty(0, np.int64)
EMPTY = np.uint32(0xFFFFFFFF)
HALF = np.uint64(32)
PIECE = 1 << 20
"""Number of characters of a text whose shingles are made at once. The few shingles across two such pieces are
omitted."""
AT_ONCE = 1 << 19
"""Number of elements (empty bins times bins) of MinHash signatures that are filled at a time: half a megabyte."""


def shingles(texts: Sequence[str], ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Split texts into shingles (n-grams of words): return uint64 [n] hashes, and int64 [n] index of the text of each.

    A text with fewer than `ngram` words has its words as shingles. Texts are processed together to reduce numpy call
    overhead. ASCII texts are processed separately, because they are three times as fast.
    """
    ascii_ = np.array([text.isascii() for text in texts], bool)
    by_alphabet = [_shingles_at(texts, np.flatnonzero(kind), ngram) for kind in (ascii_, ~ascii_) if kind.any()]
    hashes, text_of = zip(*by_alphabet, strict=True) if by_alphabet else ((), ())
    return np.concatenate([NO_HASHES, *hashes]), np.concatenate([NO_NUMBERS, *text_of])


def _shingles_at(texts: Sequence[str], numbers: np.ndarray, ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `shingles` of the texts at these indexes."""
    selected = [texts[number] for number in numbers]
    # A line break separates words, so joined texts have the same words as separate ones.
    words = Words("\n".join(selected))
    sizes = [0, *(len(text.encode("utf-8", "surrogatepass")) + 1 for text in selected)]
    counts = np.diff(np.searchsorted(words.starts, np.cumsum(sizes)))
    text_of = np.repeat(numbers, counts)
    firsts, lasts = text_of[: max(len(words) - ngram + 1, 0)], text_of[ngram - 1 :]
    within = firsts == lasts
    short = np.repeat(counts < ngram, counts)
    hashes = np.concatenate([words.ngrams(ngram)[within], words.hashes[short]])
    return hashes, np.concatenate([firsts[within], text_of[short]])


def bin_minima(hashes: np.ndarray, text_of: np.ndarray, *, texts: int, width: int, seed: int) -> np.ndarray:
    """Compute MinHash signatures, uint32 [texts, width]: minimum value of each bin, EMPTY for an empty bin."""
    values = mix_bits(hashes ^ mix_bits(np.array([seed], np.uint64)))
    bin_indexes = ((values >> HALF) * np.uint64(width) >> HALF).astype(np.int64) + text_of * width
    minima = np.full(texts * width, EMPTY)
    np.minimum.at(minima, bin_indexes, values.astype(np.uint32))
    return minima.reshape(texts, width)


def densify(minima: np.ndarray, seed: int) -> np.ndarray:
    """Fill the empty bins of MinHash signatures in place. A text without shingles stays empty."""
    width = minima.shape[1]
    full = minima != EMPTY
    texts, bin_indexes = np.nonzero(~full & full.any(axis=1, keepdims=True))
    orders = _bin_orders(width, seed)
    for begin in range(0, len(texts), AT_ONCE // width):
        selected = slice(begin, begin + AT_ONCE // width)
        order = orders[bin_indexes[selected]]
        lender = full[texts[selected, None], order].argmax(axis=1)
        minima[texts[selected], bin_indexes[selected]] = minima[texts[selected], order[np.arange(len(order)), lender]]
    return minima


def band_keys(signatures: np.ndarray, *, bands: int, rows: int, seed: int) -> np.ndarray:
    """Return band keys of MinHash signatures, uint64 [n, bands]. They are equal if two signatures agree on all `rows`
    components of a band."""
    odd = np.random.Generator(np.random.PCG64(seed)).integers(0, 1 << 63, (bands, rows), np.uint64) * np.uint64(2)
    numbers = signatures[:, : bands * rows].reshape(-1, bands, rows).astype(np.uint64)
    keys = (numbers * (odd + np.uint64(1))).sum(axis=2, dtype=np.uint64)
    return mix_bits(keys + mix_bits(np.arange(bands, dtype=np.uint64) + np.uint64(1)))


@lru_cache(maxsize=4)
def _bin_orders(width: int, seed: int) -> np.ndarray:
    """Return for each bin of a MinHash signature the order of the bins that it copies from, int64 [width, width]."""
    order = np.tile(np.arange(width), (width, 1))
    return np.random.Generator(np.random.PCG64(seed)).permuted(order, axis=1)


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Permute 64-bit numbers so that each bit affects all bits (finalizer of SplitMix64)."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
