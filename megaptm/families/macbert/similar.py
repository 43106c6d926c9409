"""Similar words in tokens, which MacBERT shows instead of masks (arXiv:2004.13922, 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.named_file import read_named_file
from megaptm.plugins import is_plugin, load_plugin

Similar = Callable[[tuple[int, ...]], np.ndarray | None]
"""Function from the tokens of a word to similar words of as many tokens, [words, tokens]. None: no similar words."""

MAX_BYTES = 4 << 30
"""Maximum bytes of an unpacked table of similar words (MacBERT); a hundred million words need less."""
REMEDY = "make it with `megaptm corpus similar-words`"


class SimilarWords:
    """Table of similar words from a file. For each token count n: `words-n` [W, n] and `similar-n` [W, maximum, n],
    padded with rows of -1."""

    def __init__(self, tables: Mapping[str, np.ndarray]) -> None:
        self._similar: dict[tuple[int, ...], np.ndarray] = {}
        self.max_id = -1
        """Largest token id in MacBERT's table of similar words."""
        for name, words in tables.items():
            if not name.startswith("words-"):
                continue
            similar = tables[name.replace("words-", "similar-")]
            _check_ids(words, similar)
            self.max_id = max(self.max_id, int(words.max(initial=-1)), int(similar.max(initial=-1)))
            for word, like in zip(words.tolist(), similar, strict=True):
                if len(like := like[like[:, 0] >= 0]):
                    self._similar[tuple(word)] = like

    def __len__(self) -> int:
        return len(self._similar)

    def __call__(self, word: tuple[int, ...]) -> np.ndarray | None:
        return self._similar.get(word)


def _check_ids(words: np.ndarray, similar: np.ndarray) -> None:
    """Raise `ValueError` unless words are [W, n] and similar words [W, maximum, n], as in `SimilarWords`."""
    if {words.dtype.kind, similar.dtype.kind} != {"i"} or words.ndim != 2 or similar.ndim != 3:
        raise ValueError("its arrays are not tables of ids")
    if similar.shape != (len(words), similar.shape[1], words.shape[1]) or not words.shape[1]:
        raise ValueError(f"words of {words.shape[1]} tokens have similar words of shape {similar.shape}")
    if ((similar < 0).any(2) != (similar < 0).all(2)).any():
        raise ValueError("it has negative ids")


@lru_cache(maxsize=4)
def load_similar_words(name: str) -> Similar:
    """Load MacBERT's table of similar words from a file (cached), or a custom function, package.module:NAME."""
    if is_plugin(name):
        function: Similar = load_plugin(name, "similar", "function")
        if not callable(function):
            raise UserError(f"similar: `{name}` is not a function: correct the name.")
        return function
    return read_named_file("similar", name, _read_table, kind="table of similar words", remedy=REMEDY)


def _read_table(path: Path) -> SimilarWords:
    with ZipFile(path) as archive:
        if (size := sum(member.file_size for member in archive.infolist())) > MAX_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes")
        # For other compression types zipfile ignores the declared size.
        if any(member.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for member in archive.infolist()):
            raise ValueError("it has a compression type that numpy does not use")
    with np.load(path, allow_pickle=False) as tables:
        return SimilarWords(dict(tables))


def write_similar(words: Mapping[tuple[int, ...], list[tuple[int, ...]]], path: Path) -> None:
    """Write MacBERT's table of similar words to a file: word -> similar words of as many tokens."""
    tables: dict[str, np.ndarray] = {}
    for length in sorted({len(word) for word in words}):
        of_length = {word: like for word, like in words.items() if len(word) == length}
        maximum = max(map(len, of_length.values()))
        similar = np.full((len(of_length), maximum, length), -1, dtype=np.int32)
        for row, words_of_row in zip(similar, of_length.values(), strict=True):
            row[: len(words_of_row)] = words_of_row
        tables[f"words-{length}"] = np.array([*of_length], dtype=np.int32)
        tables[f"similar-{length}"] = similar
    with path.open("wb") as file:
        np.savez_compressed(file, **tables)  # type: ignore[arg-type]
