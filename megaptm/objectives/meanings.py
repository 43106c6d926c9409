"""Table of phrases by meaning, in tokens, with which captions are rewritten (`objectives.rewriting`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from megaptm.objectives.named_file import read_named_file
from megaptm.objectives.rewriting import Rewriter, Text, words_of

MOST_BYTES = 256 << 20
MOST_IDS = 1 << 31
"""Larger than the vocabulary of any tokenizer; larger ids are refused before arrays are made."""
REMEDY = "make it with `megaptm corpus meanings`"

Meanings = Mapping[str, Sequence[Sequence[Sequence[int]]]]
"""Kind, a key of `rewriting.KINDS` -> phrases of each meaning, each a list of tokens."""


@dataclass(frozen=True)
class MeaningTable:
    """Rewriter over words, each a sequence of tokens."""

    rewriter: Rewriter
    inside: frozenset[int]
    """Tokens that continue a word."""
    largest: int
    """Largest token id."""

    def words(self, tokens: np.ndarray) -> Text:
        """Return the words of a text."""
        return _words(tokens.tolist(), self.inside)


def write_meanings(meanings: Meanings, inside: Sequence[int], path: Path) -> None:
    """Write a table to a file."""
    path.write_text(json.dumps({"inside": [*inside], "meanings": meanings}) + "\n")


@lru_cache(maxsize=4)
def meanings_named(name: str) -> MeaningTable:
    """Read a table from a file; cached."""
    return read_named_file("meanings", name, _read, kind="table of meanings", remedy=REMEDY)


def _read(path: Path) -> MeaningTable:
    """Read a table. Raises `ValueError` if the content is none."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes")
    said = json.loads(path.read_text())
    if not isinstance(said, dict) or not isinstance(known := said.get("meanings"), dict):
        raise ValueError("it holds something else")
    inside = frozenset(_ids(said.get("inside")))
    for phrases in known.values():
        if not isinstance(phrases, list) or not all(isinstance(one, list) for one in phrases):
            raise ValueError("it holds something else")
    told = {kind: [[_ids(one) for one in phrases] for phrases in known[kind]] for kind in known}
    ids = [token for meanings in told.values() for phrases in meanings for one in phrases for token in one]
    in_words = {kind: [[_words(one, inside) for one in phrases] for phrases in told[kind]] for kind in told}
    return MeaningTable(Rewriter(in_words), inside, max(ids, default=-1))


def _ids(said: Any) -> list[int]:
    if not isinstance(said, list) or not all(type(one) is int and 0 <= one < MOST_IDS for one in said):
        raise ValueError("a phrase in it is no list of tokens")
    return said


def _words(tokens: Sequence[int], inside: frozenset[int]) -> Text:
    return words_of(
        np.array(tokens, dtype=np.int64), np.array([token not in inside for token in tokens], dtype=np.int64)
    )
