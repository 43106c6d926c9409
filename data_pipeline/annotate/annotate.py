"""Places in a text become places among its tokens, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from data_pipeline.annotate.options import Annotations
from data_pipeline.annotate.parts import parts_of
from data_pipeline.annotate.sentences import sentence_begins
from data_pipeline.annotate.tags import Tag, tagger_named
from data_pipeline.annotate.turns import role_number
from data_pipeline.annotate.words import word_starts
from data_pipeline.document import Document
from megaptm.tokenizers import Tokenizer, starts_of

Annotated = tuple[np.ndarray, dict[str, np.ndarray]]


def annotate(documents: Sequence[Document], tokenizer: Tokenizer, wanted: Annotations) -> list[Annotated]:
    """For each document int32 [tokens] ids, and an array for each of `wanted.fields`.

    `sentences` and `words` int32 [n]: the token where each starts. `tags` int32 [n, 3]: first token, the token after
    the last, number of the label. `turns` int32 [n, 2]: first token, number of the role. All rise by their first
    column. `parts` int32 [n] is as `sentences`, but no token holds characters of two; one without a token is left out.
    A thing starts at the first token that holds a character of it, but no word is cut for another that shares a token
    with it; what has no token (white space, for WordPiece) is left out.
    """
    if not wanted.fields:
        return [(ids, {}) for ids in tokenizer.encode_batch([document.text for document in documents])]
    encoded = _encoded(documents, tokenizer, by_parts=wanted.parts)
    return [
        (ids, {name: _places(name, document, ends, wanted) for name in wanted.fields})
        for document, (ids, ends) in zip(documents, encoded, strict=True)
    ]


def _encoded(
    documents: Sequence[Document], tokenizer: Tokenizer, *, by_parts: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each document ids, and the character of the text after each token's last."""
    if not by_parts:
        return tokenizer.encode_batch_with_ends([document.text for document in documents])
    parts = [parts_of(document) for document in documents]
    encoded = iter(tokenizer.encode_batch_with_ends(list(chain(*parts))))
    found = []
    for document, texts in zip(documents, parts, strict=True):
        ids, ends = zip(*(next(encoded) for _ in texts), strict=True)
        begins = document.notes.get("parts", [0])
        shifted = [own + begin for own, begin in zip(ends, begins, strict=True)]
        found.append((np.concatenate(ids), np.concatenate(shifted).astype(np.int32)))
    return found


def _places(name: str, document: Document, ends: np.ndarray, wanted: Annotations) -> np.ndarray:
    if name == "sentences":
        return starts_of(ends, sentence_begins(document.text, document.form))
    if name == "words":
        return word_starts(document.text, ends, wanted.chinese)
    if name == "tags":
        assert wanted.tags is not None
        tagger = tagger_named(wanted.tags)
        return _tags(tagger.tags(document), ends, tagger.labels)
    if name == "parts":
        begins = document.notes.get("parts", [0])
        starts = np.unique(np.searchsorted(ends, begins, side="right")).astype(np.int32)
        return starts[starts < len(ends)]
    return _turns(document, ends)


def _tags(tags: Sequence[Tag], ends: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """int32 [tags, 3]"""
    number = {label: number for number, label in enumerate(labels)}
    spans = np.array([(first, stop) for first, stop, _ in tags], dtype=np.int64).reshape(-1, 2)
    starts = np.searchsorted(ends, spans[:, 0], side="right")
    # Up to the token that holds the last character, or the last of several that share it.
    stops = np.minimum(np.searchsorted(ends, spans[:, 1], side="left") + 1, len(ends))
    stops = np.maximum(stops, np.searchsorted(ends, spans[:, 1], side="right"))
    rows = np.stack([starts, stops, [number[label] for _, _, label in tags]], axis=1).astype(np.int32)
    return np.unique(rows[starts < stops], axis=0)


def _turns(document: Document, ends: np.ndarray) -> np.ndarray:
    """int32 [turns, 2]"""
    turns = sorted((int(first), role_number(role)) for first, role in document.notes.get("turns", ()))
    starts = np.searchsorted(ends, [first for first, _ in turns], side="right")
    rows = np.stack([starts, [role for _, role in turns]], axis=1).astype(np.int32).reshape(-1, 2)
    # Of turns without a token of their own, the last one speaks.
    last = np.append(starts[1:] != starts[:-1], True)[: len(starts)]
    return rows[last & (starts < len(ends))]
