"""Word vectors from a text file, for models that begin with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from megaptm.errors import UserError

KEY = "model.vectors"
LONGEST_LINE = 1 << 20
"""Characters: of a file without lines, such as one that is packed, no more is read."""


def with_vectors(table_VD: Tensor, path: str, names: Sequence[str]) -> Tensor:
    """The table with the vectors of a file in the rows of the words that it has. A line is a word and its numbers, with
    spaces between (GloVe); a first line of two numbers says how many there are (word2vec)."""
    rows, width, found = {name: row for row, name in enumerate(names)}, table_VD.shape[1], 0
    table_VD = table_VD.clone()
    if (place := Path(path).expanduser()).exists() and not place.is_file():  # a pipe would be waited for
        raise UserError(f"{KEY} ({path}) is no file: give a text file of vectors.")
    try:
        with place.open(encoding="utf-8", errors="replace") as file:
            first = 1
            for number, line in _lines(file, path):
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1:
                    first = 2
                    continue
                if len(numbers) < width or (number == first and _are_numbers(numbers[:-width])):
                    raise UserError(
                        f"{KEY}: line {number} of {path} has {len(numbers)} numbers, the table {width}: give a text "
                        "file of vectors as wide as model.embedding."
                    )
                # A word may have spaces in it, as a few of GloVe's do.
                word = " ".join([word, *numbers[:-width]])
                if (row := rows.get(word)) is not None:
                    table_VD[row], found = _numbers(numbers[-width:], number, path), found + 1
    except OSError as error:
        raise UserError(f"{KEY} ({path}) cannot be read ({error.strerror}): correct the path.") from None
    if not found:
        raise UserError(f"{KEY}: {path} has none of the {len(names):,} words of the vocabulary: take another file.")
    return table_VD


def _lines(file: IO[str], path: str) -> Iterator[tuple[int, str]]:
    """From 1 on."""
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
        if len(line) == LONGEST_LINE:
            raise UserError(f"{KEY}: line {number} of {path} is no word and its numbers: give a text file of vectors.")
        yield number, line


def _are_numbers(words: Sequence[str]) -> bool:
    """Whether there are any, and none is a word."""
    try:
        return bool([float(word) for word in words])
    except ValueError:
        return False


def _numbers(words: Sequence[str], line: int, path: str) -> Tensor:
    try:
        vector = torch.tensor([float(word) for word in words])
    except ValueError:
        raise UserError(
            f"{KEY}: line {line} of {path} is no word and its numbers: give a text file of vectors."
        ) from None
    if not vector.isfinite().all():
        raise UserError(f"{KEY}: line {line} of {path} has a number that is not finite: leave that line out.")
    return vector
