"""Table of similar words, from a file or from word vectors, as tokens (MacBERT)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.similar import write_similar
from megaptm.storage import AtomicFile, plain_file
from megaptm.tokenizers import Tokenizer

WordTable = Mapping[str, Iterable[str]]
BLOCK = 256
"""Words compared with all others at a time."""


def write_similar_words(words: WordTable, tokenizer: Tokenizer, out: Path) -> int:
    """Write the file; return the number of words that have similar words with as many tokens.

    Each word is tokenized both at the start of a text and after a space, because some tokenizers distinguish the two.
    """
    found: defaultdict[tuple[int, ...], dict[tuple[int, ...], None]] = defaultdict(dict)
    for before in ("", " "):
        for word, others in words.items():
            own, *theirs = (_tokens(before + one, tokenizer) for one in (word, *others))
            alike = [one for one in theirs if len(one) == len(own) and one != own]
            if own and alike:
                found[own] |= dict.fromkeys(alike)
    if not found:
        raise UserError(
            "similar words: no word has another of as many tokens that is like it: give more words, or larger ones."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(out) as unfinished:
        write_similar({word: [*alike] for word, alike in found.items()}, unfinished)
    return len(found)


def _tokens(word: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of a word; empty if the tokenizer does not know all of it."""
    ids = tuple(tokenizer.encode(word).tolist())
    return () if tokenizer.special.specials & set(ids) else ids


def read_table(path: Path) -> dict[str, list[str]]:
    """Read lines of `word<TAB>similar similar ...`, the most similar first. Blank lines and lines that start with # are
    ignored."""
    words: dict[str, list[str]] = {}
    for number, line in _lines(path):
        if not line.strip() or line.startswith("#"):
            continue
        word, tab, similar = line.partition("\t")
        if not word.strip() or not tab or not similar.split():
            raise UserError(f"line {number} of {path} is not `word<TAB>similar similar ...`: correct it.")
        words.setdefault(word.strip(), []).extend(similar.split())
    return words


def read_vectors(path: Path, tokenizer: Tokenizer, *, most: int) -> dict[str, list[str]]:
    """Return for each word the `most` words with as many tokens and the largest cosine similarity.

    Lines have a word and its vector, as in word2vec and GloVe files. A header line is skipped.
    """
    words, vectors = _vectors(path)
    lengths = np.array([len(_tokens(word, tokenizer)) for word in words])
    # Divide by the maximum first, because squares of large values would overflow.
    vectors /= np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found: dict[str, list[str]] = {}
    for length in np.unique(lengths[lengths > 0]).tolist():
        those = np.flatnonzero(lengths == length)
        for start in range(0, len(those), BLOCK):
            rows = those[start : start + BLOCK]
            near = vectors[rows] @ vectors[those].T
            near[np.arange(len(rows)), start + np.arange(len(rows))] = -np.inf
            for row, angles in zip(rows, near, strict=True):
                found[words[row]] = [words[those[other]] for other in _largest(angles, min(most, len(those) - 1))]
    return {word: others for word, others in found.items() if others}


def _largest(numbers: np.ndarray, most: int) -> np.ndarray:
    """Return the indexes of the `most` largest values, in descending order."""
    if not most:
        return np.zeros(0, dtype=np.int64)
    there = np.sort(np.argpartition(-numbers, most - 1)[:most])
    return there[np.argsort(-numbers[there], kind="stable")]


def _vectors(path: Path) -> tuple[list[str], np.ndarray]:
    words: list[str] = []
    rows: list[np.ndarray] = []
    for number, line in _lines(path):
        word, *numbers = line.split() or [""]
        if not word or (number == 1 and len(numbers) == 1):
            continue
        try:
            with np.errstate(over="ignore"):
                row = np.array(numbers, dtype=np.float32)
        except ValueError:
            raise UserError(f"line {number} of {path} is not a word and its numbers: correct it.") from None
        if not np.isfinite(row).all():
            raise UserError(
                f"line {number} of {path} has a number that is not finite: correct it, or leave that line out."
            )
        if not len(row) or (rows and len(row) != len(rows[0])):
            raise UserError(f"line {number} of {path} has {len(row)} numbers, unlike the others: correct it.")
        words.append(word)
        rows.append(row)
    if not words:
        raise UserError(f"{path} has no words: give lines of a word and its numbers.")
    return words, np.stack(rows)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        yield from enumerate(plain_file(path).read_text(encoding="utf-8").split("\n"), 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): correct its name, or write it in UTF-8.") from None
