"""Table of similar words, from a file or from word vectors, as tokens (MacBERT)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from data_pipeline.commands import output_file
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.families.macbert.similar import write_similar
from megaptm.storage import AtomicFile, read_table_lines, read_text_file
from megaptm.tokenizers import Tokenizer, load_tokenizer

WordTable = Mapping[str, Iterable[str]]
BLOCK = 256
"""Number of words that are compared with all others at a time, to find similar words."""


def write_similar_words(words: WordTable, tokenizer: Tokenizer, out: Path) -> int:
    """Write MacBERT's table of similar words to a file; return the number of words that have similar words with as many
    tokens.

    Each word is tokenized both at the start of a text and after a space, because some tokenizers distinguish the two.
    """
    similar_tokens: defaultdict[tuple[int, ...], dict[tuple[int, ...], None]] = defaultdict(dict)
    for before in ("", " "):
        for word, similar_words in words.items():
            own, *similar_ids = (_tokenize_word(before + text, tokenizer) for text in (word, *similar_words))
            candidates = [text for text in similar_ids if len(text) == len(own) and text != own]
            if own and candidates:
                similar_tokens[own] |= dict.fromkeys(candidates)
    if not similar_tokens:
        raise UserError(
            "similar words: no word has a similar word with as many tokens: use more words, or a larger vocabulary."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(out) as unfinished:
        write_similar({word: [*candidates] for word, candidates in similar_tokens.items()}, unfinished)
    return len(similar_tokens)


def _tokenize_word(word: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of a word for the table of similar words; empty if the tokenizer does not know all of it."""
    ids = tuple(tokenizer.encode(word).tolist())
    return () if tokenizer.special.specials & set(ids) else ids


def read_table(path: Path) -> dict[str, list[str]]:
    """Read MacBERT's similar words from lines of `word<TAB>similar similar ...`, the most similar first. Blank lines
    and lines that start with # are ignored."""
    words: dict[str, list[str]] = {}
    for number, line in read_table_lines(path):
        word, tab, similar = line.partition("\t")
        if not word.strip() or not tab or not similar.split():
            raise UserError(f"line {number} of {path} is not `word<TAB>similar similar ...`: correct it.")
        words.setdefault(word.strip(), []).extend(similar.split())
    return words


def read_vectors(path: Path, tokenizer: Tokenizer, *, top: int) -> dict[str, list[str]]:
    """Find MacBERT's similar words by word vectors: return for each word the `top` words with as many tokens and the
    largest cosine similarity.

    Lines have a word and its vector, as in word2vec and GloVe files. A header line is skipped.
    """
    words, vectors = _read_vectors(path)
    lengths = np.array([len(_tokenize_word(word, tokenizer)) for word in words])
    # Divide by the maximum first, because squares of large values would overflow.
    vectors /= np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar_tokens: dict[str, list[str]] = {}
    for length in np.unique(lengths[lengths > 0]).tolist():
        those = np.flatnonzero(lengths == length)
        for start in range(0, len(those), BLOCK):
            rows = those[start : start + BLOCK]
            near = vectors[rows] @ vectors[those].T
            near[np.arange(len(rows)), start + np.arange(len(rows))] = -np.inf
            for row, angles in zip(rows, near, strict=True):
                similar_tokens[words[row]] = [
                    words[those[other]] for other in _indexes_of_largest(angles, min(top, len(those) - 1))
                ]
    return {word: similar_words for word, similar_words in similar_tokens.items() if similar_words}


def _indexes_of_largest(numbers: np.ndarray, top: int) -> np.ndarray:
    """Return the indexes of the `top` largest similarities between words, in descending order."""
    if not top:
        return np.zeros(0, dtype=np.int64)
    there = np.sort(np.argpartition(-numbers, top - 1)[:top])
    return there[np.argsort(-numbers[there], kind="stable")]


def _read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    words: list[str] = []
    rows: list[np.ndarray] = []
    for number, line in enumerate(read_text_file(path).split("\n"), 1):
        word, *numbers = line.split() or [""]
        if not word or (number == 1 and len(numbers) == 1):
            continue
        try:
            with np.errstate(over="ignore"):
                row = np.array(numbers, dtype=np.float32)
        except ValueError:
            raise UserError(f"line {number} of {path} is not a word and its vector: correct it.") from None
        if not np.isfinite(row).all():
            raise UserError(f"line {number} of {path} has a value that is not finite: correct it, or remove the line.")
        if not len(row) or (rows and len(row) != len(rows[0])):
            raise UserError(f"line {number} of {path} has {len(row)} values, unlike earlier lines: correct it.")
        words.append(word)
        rows.append(row)
    if not words:
        raise UserError(f"{path} has no words: add lines of a word and its vector.")
    return words, np.stack(rows)


def build_similar_words(
    source: str, tokenizer: str, out: str, *, vectors: bool = False, top: int = 10, console: Console | None = None
) -> None:
    """Write MacBERT's table of similar words, which `show: similar-words` reads."""
    file, known, path = output_file(out), load_tokenizer(Path(tokenizer)), Path(source)
    arguments = read_vectors(path, known, top=top) if vectors else read_table(path)
    count = write_similar_words(arguments, known, file)
    (console or Console()).print(f"{out}: {count:,} words have similar words", highlight=False)
