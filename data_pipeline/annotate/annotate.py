"""Convert character offsets of annotations to token indexes, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from data_pipeline.annotate.options import Annotations
from data_pipeline.annotate.parts import document_parts
from data_pipeline.annotate.phrases import find_phrases
from data_pipeline.annotate.sentences import sentence_starts
from data_pipeline.annotate.tags import load_tagger
from data_pipeline.annotate.turns import role_index
from data_pipeline.annotate.words import capital_words, word_starts
from data_pipeline.document import Document
from megaptm.tokenizers import Tokenizer, find_first_tokens

Annotated = tuple[np.ndarray, dict[str, np.ndarray]]


def annotate_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, annotations: Annotations
) -> list[Annotated]:
    """Tokenize documents, and convert the character offsets of their annotations to token indexes. Returns for each
    document int32 [tokens] ids, and one array per field of `annotations.fields`:

    - `sentences` and `words`, int32 [n]: first token of each.
    - `capitals`, int32 [n]: tokens of capitalized words.
    - `phrases`, int32 [n, 2], and `tags`, int32 [n, 3]: first token, end token (exclusive), index of the label.
    - `turns`, int32 [n, 2]: first token, index of the role.
    - `labels`, int32 [1, 2]: 0, index of the document's label.
    - `parts`, int32 [n]: first token of each part. Parts are tokenized separately, so no token spans two of them.

    All arrays are sorted by their first column. An item starts at the first token that contains one of its characters.
    Words that share a token are merged. Items without a token (white space, for WordPiece) are omitted.
    """
    if not annotations.fields:
        return [(ids, {}) for ids in tokenizer.encode_batch([document.text for document in documents])]
    encoded = _encode_with_ends(documents, tokenizer, by_parts=annotations.parts)
    return [
        (ids, {name: _annotation_tokens(name, document, ends, annotations) for name in annotations.fields})
        for document, (ids, ends) in zip(documents, encoded, strict=True)
    ]


def _encode_with_ends(
    documents: Sequence[Document], tokenizer: Tokenizer, *, by_parts: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each document its ids, and for each token its end offset in the text."""
    if not by_parts:
        return tokenizer.encode_batch_with_ends([document.text for document in documents])
    parts = [document_parts(document) for document in documents]
    encoded = iter(tokenizer.encode_batch_with_ends(list(chain(*parts))))
    shifted_parts = []
    for document, texts in zip(documents, parts, strict=True):
        ids, ends = zip(*(next(encoded) for _ in texts), strict=True)
        part_starts = document.notes.get("parts", [0])
        shifted = [own + begin for own, begin in zip(ends, part_starts, strict=True)]
        shifted_parts.append((np.concatenate(ids), np.concatenate(shifted).astype(np.int32)))
    return shifted_parts


def _annotation_tokens(name: str, document: Document, ends: np.ndarray, annotations: Annotations) -> np.ndarray:
    if name == "sentences":
        return find_first_tokens(ends, sentence_starts(document.text, document.form))
    if name == "words":
        return word_starts(document.text, ends, annotations.chinese)
    if name == "capitals":
        return _tokens_within(_token_spans(capital_words(document.text), ends))
    if name == "phrases":
        assert annotations.phrases is not None
        return _token_spans([(*span, 0) for span in find_phrases(annotations.phrases, document)], ends)[:, :2]
    if name == "tags":
        assert annotations.tags is not None
        tagger = load_tagger(annotations.tags)
        number = {label: number for number, label in enumerate(tagger.labels)}
        return _token_spans([(first, stop, number[label]) for first, stop, label in tagger.tags(document)], ends)
    if name == "labels":
        return _label_row(document, annotations.labels)
    if name == "parts":
        part_starts = document.notes.get("parts", [0])
        starts = np.unique(np.searchsorted(ends, part_starts, side="right")).astype(np.int32)
        return starts[starts < len(ends)]
    return _turn_rows(document, ends)


def _token_spans(shifted_parts: Sequence[tuple[int, int, int]], ends: np.ndarray) -> np.ndarray:
    """Convert annotated spans (start, end, label index) in characters to int32 [spans, 3] in tokens."""
    spans = np.array(shifted_parts, dtype=np.int64).reshape(-1, 3)
    starts = np.searchsorted(ends, spans[:, 0], side="right")
    # The end is the token with the last character, or the last of several tokens that share it.
    stops = np.minimum(np.searchsorted(ends, spans[:, 1], side="left") + 1, len(ends))
    stops = np.maximum(stops, np.searchsorted(ends, spans[:, 1], side="right"))
    rows = np.stack([starts, stops, spans[:, 2]], axis=1).astype(np.int32)
    return np.unique(rows[starts < stops], axis=0)


def _label_row(document: Document, labels: Sequence[str]) -> np.ndarray:
    """Return the row of a document's label, int32 [1, 2]; raise `ValueError` if the label is not in `labels`."""
    if (label := str(document.notes.get("label"))) not in labels:
        raise ValueError(f"the label {label!r} is not one of {', '.join(labels)}")
    return np.array([[0, labels.index(label)]], dtype=np.int32)


def _tokens_within(spans: np.ndarray) -> np.ndarray:
    """Return the unique indexes of the tokens within annotated spans, int32 [n]."""
    tokens = [np.arange(first, stop, dtype=np.int32) for first, stop in spans[:, :2].tolist()]
    return np.unique(np.concatenate(tokens)) if tokens else np.zeros(0, dtype=np.int32)


def _turn_rows(document: Document, ends: np.ndarray) -> np.ndarray:
    """Return the turns of a dialogue as int32 [turns, 2]: first token, index of the role."""
    turns = sorted((int(first), role_index(role)) for first, role in document.notes.get("turns", ()))
    starts = np.searchsorted(ends, [first for first, _ in turns], side="right")
    rows = np.stack([starts, [role for _, role in turns]], axis=1).astype(np.int32).reshape(-1, 2)
    # If several turns start at the same token, the last one counts.
    last = np.append(starts[1:] != starts[:-1], True)[: len(starts)]
    return rows[last & (starts < len(ends))]
