"""Cache of encoded words for WordPiece and Unigram. Each distinct word is encoded once, by Hugging Face's library.

No faster library was found that gives the same ids on every text. The result is exact because all parts of such a
tokenizer work within words: see `splits_at_spaces`.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from megaptm.errors import UserError
from megaptm.tokenizers.normalization import collapse_precompiled, flatten_normalizer

if TYPE_CHECKING:
    import tokenizers

MARK = "▁"
"""SentencePiece's mark of a space. It is a separate token before a word that starts with no piece."""
MAX_WORDS = 1_000_000
"""Maximum number of cached words, about 150 bytes each. A full cache is cleared."""
MAX_WORD_BYTES = 40
"""Maximum bytes of a cached word, because Chinese lines and long numbers rarely repeat."""

# Separators of bytes.split(). Form feeds and vertical tabs are spaces for some tokenizers and ignored by others.
SPACES = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
RARE_SPACES = (b"\v", b"\f")
# Words that may be divided further, and their parts. Far fewer parts than words are distinct.
ASCII_WORD = re.compile(rb"[!-~]+")
PARTS = re.compile(rb"[0-9A-Za-z]+|[^0-9A-Za-z]")
WIDE_SPACES = "\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"

# Components that operate on one character, or on characters without a space between them.
NORMALIZERS = (
    "BertNormalizer",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Lowercase",
    "StripAccents",
    "Strip",
    "Precompiled",
)
PRE_TOKENIZERS = ("BertPreTokenizer", "WhitespaceSplit", "Whitespace", "Punctuation", "Digits", "Metaspace")
BY_CHARACTER = tuple(kind for kind in NORMALIZERS if kind not in ("Strip", "Precompiled"))
SINGLE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}}


class WordCache:
    """Encoder of texts with a cache of words. It returns None for a text that the library must encode as a whole."""

    def __init__(self, content: Mapping[str, Any], library: tokenizers.Tokenizer, *, ends: bool):
        """Create an empty cache. `ends`: also cache the end of each token, which doubles the memory."""
        self._library = library
        self._ends = ends
        self._splits_words = not ends and _splits_at_marks(content, library)
        self._mark = library.token_to_id(MARK)
        self._encoded: dict[bytes, bytes | None] = {}
        self._unsupported_spaces = tuple(space for space in RARE_SPACES if not _is_space(library, space.decode()))
        # Such a space at the end of a word may or may not merge with the next space.
        self._strips_wide_spaces = all(
            _split_words(library, f"{space}a{space}") == _split_words(library, "a") for space in WIDE_SPACES
        )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Encode texts with the cache of words: return int32 [tokens] for each."""
        assert not self._ends
        return [None if row is None else row[:, 0] for row, _ in self._encode_texts(texts)]

    def encode_batch_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Encode texts with the cache of words: return for each int32 [tokens] ids, and int32 [tokens] end of each
        token in characters."""
        assert self._ends
        results: list[tuple[np.ndarray, np.ndarray] | None] = []
        for text, (rows, sizes) in zip(texts, self._encode_texts(texts), strict=True):
            if rows is None:
                results.append(None)
                continue
            counts = np.array(sizes, dtype=np.int64) // (4 * rows.shape[1])
            word_starts = np.repeat(_word_starts(text), counts)
            results.append((rows[:, 0].copy(), (rows[:, 1] + word_starts).astype(np.int32)))
        return results

    def _encode_texts(self, texts: Sequence[str]) -> list[tuple[np.ndarray | None, list[int]]]:
        """Encode texts: return int32 [tokens, 1 or 2] for each, and the number of bytes of each word in it."""
        raws = [text.encode() for text in texts]
        words_by_text = [raw.split() for raw in raws]
        new = {word for words in words_by_text for word in words}.difference(self._encoded)
        self._cache_words(new)
        rows = [self._join_words(raw, words) for raw, words in zip(raws, words_by_text, strict=True)]
        self._limit_cache(new)
        return rows

    def _join_words(self, raw: bytes, words: list[bytes]) -> tuple[np.ndarray | None, list[int]]:
        if any(space in raw for space in self._unsupported_spaces):
            return None, []
        encoded: list[Any] = list(map(self._encoded.__getitem__, words))
        try:
            rows = np.frombuffer(b"".join(encoded), dtype=np.int32).reshape(-1, 1 + self._ends)
        except TypeError:  # a word that depends on its context is cached as None
            return None, []
        return rows, list(map(len, encoded)) if self._ends else []

    def _cache_words(self, words: set[bytes]) -> None:
        split = (
            {word: PARTS.findall(word) for word in words if ASCII_WORD.fullmatch(word)} if self._splits_words else {}
        )
        parts = {part for word_parts in split.values() for part in word_parts}.difference(self._encoded)
        self._encode_words([*words.difference(split), *parts])
        for word, word_parts in split.items():
            self._encoded[word] = b"".join(map(self._encoded.__getitem__, word_parts))  # type: ignore[arg-type]  # no None
        self._drop_long_words(parts.difference(words))

    def _encode_words(self, words: list[bytes]) -> None:
        """Encode words, or parts of words, with the library, and cache the results."""
        texts = [word.decode() for word in words]
        if not texts:
            return
        if self._ends:
            with convert_library_errors():
                encodings = self._library.encode_batch(texts, add_special_tokens=False)
            ids, ends, counts = ids_and_ends(encodings, self._mark)
            rows = np.stack([ids, ends], axis=1)
        else:
            with convert_library_errors():
                encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
            counts = [len(encoding) for encoding in encodings]
            rows = np.array(list(chain.from_iterable(encoding.ids for encoding in encodings)), dtype=np.int32)[:, None]
        raw, at = rows.tobytes(), 0
        for word, text, count in zip(words, texts, counts, strict=True):
            size = 4 * rows.shape[1] * count
            self._encoded[word] = raw[at : at + size] if self._is_context_free(text) else None
            at += size

    def _limit_cache(self, new: Iterable[bytes]) -> None:
        if len(self._encoded) > MAX_WORDS:
            self._encoded.clear()
        else:
            self._drop_long_words(new)

    def _drop_long_words(self, words: Iterable[bytes]) -> None:
        for word in words:
            if len(word) > MAX_WORD_BYTES:
                del self._encoded[word]

    def _is_context_free(self, text: str) -> bool:
        """Whether the encoding of a word is independent of the characters across the spaces at its ends."""
        text = text.strip(WIDE_SPACES) if self._strips_wide_spaces else text
        kinds = [unicodedata.category(character)[0] for character in (text[:1], text[-1:]) if character]
        return bool(kinds) and kinds[0] not in "CMZ" and kinds[1] not in "CZ"


SURROGATES = re.compile("[\ud800-\udfff]")


@contextmanager
def convert_library_errors(texts: Sequence[str] = ()) -> Iterator[None]:
    """Convert errors of the tokenizers library for a text that it cannot encode to `UserError`. `texts` are searched
    for surrogates."""
    try:
        yield
    except Exception as error:
        if surrogate := next(filter(None, map(SURROGATES.search, texts)), None):
            raise UserError(
                f"a text contains {surrogate[0]!a}: half of a character, or a byte that is not UTF-8. Remove it."
            ) from None
        if type(error) is not Exception:
            raise
        raise UserError(f"the tokenizer failed to encode a text ({error}): train it or download it again.") from None
    except BaseException as error:  # a panic of the library's Rust code, for example on an exponential pattern
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"the tokenizer failed to encode a text ({str(error)[:200]}): train it again with a simpler pattern."
        ) from None


def splits_at_spaces(content: Mapping[str, Any], library: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer splits at spaces: the tokens of a text are the concatenated tokens of its words.

    The types of the components show that they work within words. A trial shows that any white space separates words and
    leaves no token.
    """
    if any(not token.get("special") for token in content.get("added_tokens", ())) or content["model"].get("dropout"):
        return False
    # The components that replace `Precompiled` work within words, as it does.
    normalizers, pre_tokenizers = (
        flatten_normalizer(collapse_precompiled(content.get("normalizer"))),
        flatten_normalizer(content.get("pre_tokenizer")),
    )
    local = all(part.get("type") in NORMALIZERS or _replaces_within_words(part) for part in normalizers)
    local = local and all(part.get("type") in PRE_TOKENIZERS for part in pre_tokenizers)
    return local and bool(pre_tokenizers) and all(_is_space(library, space) for space in " \t\n\r")


def ids_and_ends(
    encodings: Sequence[tokenizers.Encoding], mark: int | None
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the ids of the library's encodings, their ends in characters (both int32 [tokens], texts concatenated),
    and the number of tokens of each text.

    `mark` is the id of SentencePiece's mark of a space. Ends never decrease. A separate mark ends where the token after
    it does.
    """
    counts = [len(encoding) for encoding in encodings]
    ids = np.array(list(chain.from_iterable(encoding.ids for encoding in encodings)), dtype=np.int32)
    offsets = [end for encoding in encodings for _, end in encoding.offsets]
    ends = np.array(offsets, dtype=np.int64)
    text = np.repeat(np.arange(len(counts)), counts)
    if mark is not None:
        lone_marks = np.flatnonzero((ids[:-1] == mark) & (text[:-1] == text[1:]))
        ends[lone_marks] = ends[lone_marks + 1]
    # A mark that was added before the text belongs to its first character.
    ends = np.maximum(ends, 1)
    # A character that a normalizer moved keeps its old offset; later tokens must not end before it.
    spread = text * (int(ends.max(initial=0)) + 1)
    return ids, (np.maximum.accumulate(ends + spread) - spread).astype(np.int32), counts


def _splits_at_marks(content: Mapping[str, Any], library: tokenizers.Tokenizer) -> bool:
    """Whether for a tokenizer every ASCII punctuation mark separates words and is a word by itself."""
    if any(part["type"] not in BY_CHARACTER for part in flatten_normalizer(content.get("normalizer"))):
        return False
    marks = (mark for mark in string.punctuation)
    return all(
        _split_words(library, f"a{mark}1{mark}{mark}B")
        == [*_split_words(library, "a"), mark, *_split_words(library, "1"), mark, mark, *_split_words(library, "B")]
        for mark in marks
    )


def _replaces_within_words(part: Mapping[str, Any]) -> bool:
    if part.get("type") != "Replace":
        return False
    pattern, content = part["pattern"].get("String"), part["content"]
    within = pattern is not None and pattern and not any(character.isspace() for character in pattern + content)
    return within or ({**part, "content": " "} == {**SINGLE_SPACE, "content": " "} and content in (" ", "▁"))


def _is_space(library: tokenizers.Tokenizer, space: str) -> bool:
    """Whether for a tokenizer a character separates words, alone, doubled or among others, without leaving a token."""
    for left, last in pairwise(("a", "it's", "12", "漢字か", "é.", "B😀")):
        expected = _split_words(library, left) + _split_words(library, last)
        for between in (space, space * 2, f" {space}", f"{space} ", f"\n{space} "):
            if _split_words(library, f"{left}{between}{last}") != expected:
                return False
        if _split_words(library, f"{space}{left}{space}{space}{last}{space}") != expected:
            return False
    return True


def _split_words(library: tokenizers.Tokenizer, text: str) -> list[str]:
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    return [piece for piece, _ in library.pre_tokenizer.pre_tokenize_str(text)]


def _word_starts(text: str) -> np.ndarray:
    """Return the first character of each word of a text, int64 [words]."""
    raw = np.frombuffer(text.encode(), dtype=np.uint8)
    space = SPACES[raw]
    starts = np.flatnonzero(~space & np.concatenate(([True], space[:-1])))
    if text.isascii():
        return starts
    return np.cumsum((raw & 0xC0) != 0x80)[starts] - 1
