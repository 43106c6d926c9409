"""Documents of several related texts (parts), such as a sentence and its translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from data_pipeline.document import Document

BETWEEN = "\n"


def text_and_parts(texts: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Join the texts of a document's parts with newlines; return the text, and the note `parts` with the start of
    each."""
    starts = accumulate((len(text) + len(BETWEEN) for text in texts[:-1]), initial=0)
    return BETWEEN.join(texts), {"parts": [*starts]}


def document_parts(document: Document) -> list[str]:
    """Return the parts of a document. Without the note, the text is the only part."""
    starts = document.notes.get("parts", [0])
    ends = [*(start - len(BETWEEN) for start in starts[1:]), len(document.text)]
    return [document.text[start:end] for start, end in zip(starts, ends, strict=True)]


def with_parts(document: Document, texts: Sequence[str]) -> Document:
    """Return a document with its parts replaced."""
    text, note = text_and_parts(texts)
    return replace(document, text=text, notes={**document.notes, **note})
