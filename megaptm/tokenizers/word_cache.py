"""WordPiece and Unigram by looking words up: each different word is encoded once, by Hugging Face's library.

No library that gives the same ids on every text was found to be faster, so the ids stay the library's own. What makes
this exact is that the tokenizer's parts work within words: see `splits_at_spaces`.
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
from megaptm.tokenizers.normalization import flat, plain

if TYPE_CHECKING:
    import tokenizers

MARK = "▁"
"""SentencePiece's space, a token of its own before a word whose beginning no piece has."""
MOST = 1_000_000
"""Words remembered, about 150 bytes each; then it begins anew."""
LONGEST = 40
"""Bytes of a word that is worth remembering: Chinese lines and long numbers do not come twice."""

# Where bytes.split() cuts. Form feeds and vertical tabs are spaces to some tokenizers and nothing at all to others.
SPACES = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
RARE_SPACES = (b"\v", b"\f")
# A word that is cut further, where that is allowed, and its parts: far fewer of them are different.
PLAIN = re.compile(rb"[!-~]+")
PARTS = re.compile(rb"[0-9A-Za-z]+|[^0-9A-Za-z]")
WIDE_SPACES = "\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"

# Parts that look at one character, or at characters without a space between them.
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
    """Encodes texts whose words stand for themselves; None for a text that the library must encode whole."""

    def __init__(self, content: Mapping[str, Any], library: tokenizers.Tokenizer, *, ends: bool):
        """With `ends`, the place after each token is remembered too: twice the memory."""
        self._library = library
        self._ends = ends
        self._cut = not ends and splits_at_marks(content, library)
        self._mark = library.token_to_id(MARK)
        self._known: dict[bytes, bytes | None] = {}
        self._apart = tuple(space for space in RARE_SPACES if not _is_space(library, space.decode()))
        # Such a space at the end of a word may merge with the one that follows, or not.
        self._wide = all(_pieces(library, f"{space}a{space}") == _pieces(library, "a") for space in WIDE_SPACES)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """int32 [tokens] for each text."""
        assert not self._ends
        return [None if row is None else row[:, 0] for row, _ in self._rows(texts)]

    def encode_batch_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """int32 [tokens] twice for each text: ids, and the character after each token's last."""
        assert self._ends
        results: list[tuple[np.ndarray, np.ndarray] | None] = []
        for text, (rows, sizes) in zip(texts, self._rows(texts), strict=True):
            if rows is None:
                results.append(None)
                continue
            counts = np.array(sizes, dtype=np.int64) // (4 * rows.shape[1])
            begins = np.repeat(_word_begins(text), counts)
            results.append((rows[:, 0].copy(), (rows[:, 1] + begins).astype(np.int32)))
        return results

    def _rows(self, texts: Sequence[str]) -> list[tuple[np.ndarray | None, list[int]]]:
        """int32 [tokens, 1 or 2] for each text, and how many bytes of it each word has."""
        raws = [text.encode() for text in texts]
        cut = [raw.split() for raw in raws]
        new = {word for words in cut for word in words}.difference(self._known)
        self._learn(new)
        rows = [self._joined(raw, words) for raw, words in zip(raws, cut, strict=True)]
        self._forget(new)
        return rows

    def _joined(self, raw: bytes, words: list[bytes]) -> tuple[np.ndarray | None, list[int]]:
        if any(space in raw for space in self._apart):
            return None, []
        found: list[Any] = list(map(self._known.__getitem__, words))
        try:
            rows = np.frombuffer(b"".join(found), dtype=np.int32).reshape(-1, 1 + self._ends)
        except TypeError:  # a word that does not stand alone is known as None
            return None, []
        return rows, list(map(len, found)) if self._ends else []

    def _learn(self, words: set[bytes]) -> None:
        cut = {word: PARTS.findall(word) for word in words if PLAIN.fullmatch(word)} if self._cut else {}
        parts = {part for those in cut.values() for part in those}.difference(self._known)
        self._ask([*words.difference(cut), *parts])
        for word, those in cut.items():
            self._known[word] = b"".join(map(self._known.__getitem__, those))  # type: ignore[arg-type]  # all alone
        self._forget_long(parts.difference(words))

    def _ask(self, words: list[bytes]) -> None:
        """What the library says of words, and of parts of words that stand for themselves."""
        texts = [word.decode() for word in words]
        if not texts:
            return
        if self._ends:
            with library_errors_as_user_errors():
                found = self._library.encode_batch(texts, add_special_tokens=False)
            ids, ends, counts = ids_and_ends(found, self._mark)
            rows = np.stack([ids, ends], axis=1)
        else:
            with library_errors_as_user_errors():
                encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
            counts = [len(encoding) for encoding in encodings]
            rows = np.array(list(chain.from_iterable(encoding.ids for encoding in encodings)), dtype=np.int32)[:, None]
        raw, at = rows.tobytes(), 0
        for word, text, count in zip(words, texts, counts, strict=True):
            size = 4 * rows.shape[1] * count
            self._known[word] = raw[at : at + size] if self._stands_alone(text) else None
            at += size

    def _forget(self, new: Iterable[bytes]) -> None:
        if len(self._known) > MOST:
            self._known.clear()
        else:
            self._forget_long(new)

    def _forget_long(self, words: Iterable[bytes]) -> None:
        for word in words:
            if len(word) > LONGEST:
                del self._known[word]

    def _stands_alone(self, text: str) -> bool:
        """Whether nothing at its ends can change, or be changed by, what is on the other side of a space."""
        text = text.strip(WIDE_SPACES) if self._wide else text
        kinds = [unicodedata.category(character)[0] for character in (text[:1], text[-1:]) if character]
        return bool(kinds) and kinds[0] not in "CMZ" and kinds[1] not in "CZ"


HALVES = re.compile("[\ud800-\udfff]")


@contextmanager
def library_errors_as_user_errors(texts: Sequence[str] = ()) -> Iterator[None]:
    """What the library says of a text that its tokenizer cannot encode; it raises the bare class. Of `texts` that are
    none it raises others."""
    try:
        yield
    except Exception as error:
        if half := next(filter(None, map(HALVES.search, texts)), None):
            raise UserError(
                f"a text has {half[0]!a}, half of a character or a byte that is not UTF-8: remove it."
            ) from None
        if type(error) is not Exception:
            raise
        raise UserError(f"the tokenizer cannot encode a text ({error}): train it or fetch it again.") from None
    except BaseException as error:  # a panic of the library's Rust code, as where a pattern takes exponential time
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"the tokenizer cannot encode a text ({str(error)[:200]}): train it again, with another pattern."
        ) from None


def splits_at_spaces(content: Mapping[str, Any], library: tokenizers.Tokenizer) -> bool:
    """Whether the tokens of a text are those of its words put end to end.

    The kinds of the parts say that they look no further than a space; trying says that a space of any kind and number
    separates and leaves nothing.
    """
    if any(not token.get("special") for token in content.get("added_tokens", ())) or content["model"].get("dropout"):
        return False
    # The parts that stand for one `Precompiled` look no further than it does.
    normalizers, pre_tokenizers = flat(plain(content.get("normalizer"))), flat(content.get("pre_tokenizer"))
    local = all(part.get("type") in NORMALIZERS or _replaces_within_words(part) for part in normalizers)
    local = local and all(part.get("type") in PRE_TOKENIZERS for part in pre_tokenizers)
    return local and bool(pre_tokenizers) and all(_is_space(library, space) for space in " \t\n\r")


def ids_and_ends(
    encodings: Sequence[tokenizers.Encoding], mark: int | None
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """int32 [tokens] twice, one text after the other: ids, and the character of its text after each token's last; then
    the number of tokens of each text. `mark` is SentencePiece's mark of a space.

    Ends never fall. A mark that is a token of its own ends where the token that it announces does.
    """
    counts = [len(encoding) for encoding in encodings]
    ids = np.array(list(chain.from_iterable(encoding.ids for encoding in encodings)), dtype=np.int32)
    places = [end for encoding in encodings for _, end in encoding.offsets]
    ends = np.array(places, dtype=np.int64)
    text = np.repeat(np.arange(len(counts)), counts)
    if mark is not None:
        lone = np.flatnonzero((ids[:-1] == mark) & (text[:-1] == text[1:]))
        ends[lone] = ends[lone + 1]
    # One that was put before the text belongs to its first character.
    ends = np.maximum(ends, 1)
    # A character that a normalizer moved keeps its old place; what comes after it does not end before it.
    far = text * (int(ends.max(initial=0)) + 1)
    return ids, (np.maximum.accumulate(ends + far) - far).astype(np.int32), counts


def splits_at_marks(content: Mapping[str, Any], library: tokenizers.Tokenizer) -> bool:
    """Whether every punctuation mark of ASCII separates words too, and is one by itself."""
    if any(part["type"] not in BY_CHARACTER for part in flat(content.get("normalizer"))):
        return False
    marks = (mark for mark in string.punctuation)
    return all(
        _pieces(library, f"a{mark}1{mark}{mark}B")
        == [*_pieces(library, "a"), mark, *_pieces(library, "1"), mark, mark, *_pieces(library, "B")]
        for mark in marks
    )


def _replaces_within_words(part: Mapping[str, Any]) -> bool:
    if part.get("type") != "Replace":
        return False
    found, put = part["pattern"].get("String"), part["content"]
    within = found is not None and found and not any(character.isspace() for character in found + put)
    return within or ({**part, "content": " "} == {**SINGLE_SPACE, "content": " "} and put in (" ", "▁"))


def _is_space(library: tokenizers.Tokenizer, space: str) -> bool:
    """Whether this character separates words, alone, doubled or among others, and leaves nothing of itself."""
    for one, two in pairwise(("a", "it's", "12", "漢字か", "é.", "B😀")):
        apart = _pieces(library, one) + _pieces(library, two)
        for between in (space, space * 2, f" {space}", f"{space} ", f"\n{space} "):
            if _pieces(library, f"{one}{between}{two}") != apart:
                return False
        if _pieces(library, f"{space}{one}{space}{space}{two}{space}") != apart:
            return False
    return True


def _pieces(library: tokenizers.Tokenizer, text: str) -> list[str]:
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    return [piece for piece, _ in library.pre_tokenizer.pre_tokenize_str(text)]


def _word_begins(text: str) -> np.ndarray:
    """int64 [words]: the first character of each."""
    raw = np.frombuffer(text.encode(), dtype=np.uint8)
    space = SPACES[raw]
    begins = np.flatnonzero(~space & np.concatenate(([True], space[:-1])))
    if text.isascii():
        return begins
    return np.cumsum((raw & 0xC0) != 0x80)[begins] - 1
