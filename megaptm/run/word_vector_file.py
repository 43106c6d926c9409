"""Text file of word vectors, with which a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.storage import regular_file

KEY = "model.word_vectors"
MAX_LINE = 1 << 20
"""Maximum characters of a line of a word vector file: rejects files without lines, such as compressed ones."""


def with_word_vectors(table_VD: Tensor, path: str, names: Sequence[str]) -> Tensor:
    """Return an embedding table with the word vectors of a file in the rows of its words.

    A line is a word and its values, separated by spaces (GloVe). An optional first line has the number of words and the
    width (word2vec).
    """
    rows, width, num_known = {name: row for row, name in enumerate(names)}, table_VD.shape[1], 0
    table_VD = table_VD.clone()
    try:
        with regular_file(path).open(encoding="utf-8", errors="replace") as file:
            first = 1
            for number, line in _numbered_lines(file, path):
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1:
                    first = 2
                    continue
                if len(numbers) < width or (number == first and _are_numbers(numbers[:-width])):
                    raise UserError(
                        f"{KEY}: line {number} of {path} has {len(numbers)} numbers, but model.embedding is {width}: "
                        "give a text file of vectors of that width."
                    )
                # A word may contain spaces, as a few of GloVe's do.
                word = " ".join([word, *numbers[:-width]])
                if (row := rows.get(word)) is not None:
                    table_VD[row], num_known = _parse_vector(numbers[-width:], number, path), num_known + 1
    except OSError as error:
        raise UserError(f"{KEY} ({path}) cannot be read ({error.strerror}): correct the path.") from None
    if not num_known:
        raise UserError(f"{KEY}: {path} has none of the {len(names):,} words of the vocabulary: use another file.")
    return table_VD


def _numbered_lines(file: IO[str], path: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines of a word vector file, starting at 1."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), ""), 1):
        if len(line) == MAX_LINE:
            raise UserError(
                f"{KEY}: line {number} of {path} is not a word and its numbers: give a text file of vectors."
            )
        yield number, line


def _are_numbers(words: Sequence[str]) -> bool:
    """Whether there is at least one string, and all strings are numbers."""
    try:
        return bool([float(word) for word in words])
    except ValueError:
        return False


def _parse_vector(words: Sequence[str], line: int, path: str) -> Tensor:
    try:
        vector = torch.tensor([float(word) for word in words])
    except ValueError:
        raise UserError(
            f"{KEY}: line {line} of {path} is not a word and its numbers: give a text file of vectors."
        ) from None
    if not vector.isfinite().all():
        raise UserError(f"{KEY}: line {line} of {path} has NaN or an infinite number: remove that line.")
    return vector
