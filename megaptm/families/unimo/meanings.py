"""Table of phrases by meaning, in tokens, with which captions are rewritten (`rewriting`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from megaptm.families.unimo.rewriting import Rewriter, Text, split_words
from megaptm.objectives.named_file import read_named_file

MAX_BYTES = 256 << 20
MAX_IDS = 1 << 31
"""Upper bound of token ids in a table of phrases, larger than any vocabulary; larger ids are refused before arrays are
made."""
REMEDY = "make it with `megaptm corpus meanings`"

Meanings = Mapping[str, Sequence[Sequence[Sequence[int]]]]
"""Kind, a key of `rewriting.KINDS` -> phrases of each meaning, each a list of tokens."""


@dataclass(frozen=True)
class MeaningTable:
    """Rewriter of captions that are given as tokens."""

    rewriter: Rewriter
    continuations: frozenset[int]
    """Token ids that continue a word of a caption."""
    max_id: int
    """Largest token id in UNIMO's table of phrases."""

    def words(self, tokens: np.ndarray) -> Text:
        """Return the words of a caption for UNIMO's rewriting."""
        return _words_of(tokens.tolist(), self.continuations)


def write_meanings(meanings: Meanings, continuations: Sequence[int], path: Path) -> None:
    """Write UNIMO's table of phrases by meaning to a file."""
    path.write_text(json.dumps({"continuations": [*continuations], "meanings": meanings}) + "\n")


@lru_cache(maxsize=4)
def load_meanings(name: str) -> MeaningTable:
    """Load UNIMO's table of phrases by meaning from a file; cached."""
    return read_named_file("meanings", name, _read_phrases, kind="table of meanings", remedy=REMEDY)


def _read_phrases(path: Path) -> MeaningTable:
    """Read a table of phrases by meaning. Raises `ValueError` if the content is invalid."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"it has {size:,} bytes")
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not isinstance(meanings := content.get("meanings"), dict):
        raise ValueError("it has no meanings")
    continuations = frozenset(_check_ids(content.get("continuations")))
    for phrases in meanings.values():
        if not isinstance(phrases, list) or not all(isinstance(phrase, list) for phrase in phrases):
            raise ValueError("a meaning in it is not a list of phrases")
    phrases_of = {kind: [[_check_ids(phrase) for phrase in phrases] for phrases in meanings[kind]] for kind in meanings}
    ids = [token for groups in phrases_of.values() for phrases in groups for phrase in phrases for token in phrase]
    in_words = {
        kind: [[_words_of(phrase, continuations) for phrase in phrases] for phrases in groups]
        for kind, groups in phrases_of.items()
    }
    return MeaningTable(Rewriter(in_words), continuations, max(ids, default=-1))


def _check_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < MAX_IDS for token in value):
        raise ValueError("a phrase in it is not a list of token ids")
    return value


def _words_of(tokens: Sequence[int], continuations: frozenset[int]) -> Text:
    return split_words(
        np.array(tokens, dtype=np.int64), np.array([token not in continuations for token in tokens], dtype=np.int64)
    )
