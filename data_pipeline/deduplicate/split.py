"""Split a text into paragraphs, and remove some of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_pipeline.deduplicate.options import ParagraphOptions
from data_pipeline.document import Document

BETWEEN = {"blank lines": re.compile(r"(\n[^\S\n]*\n\s*)"), "lines": re.compile(r"(\n\s*)")}


def repeatable_paragraphs(document: Document, options: ParagraphOptions) -> list[str]:
    """Return the paragraphs of a document that may be removed as repeated, stripped."""
    return [paragraph for _, paragraph in _numbered_paragraphs(_split_document(document, options), options)]


def without_paragraphs(document: Document, repeated: Sequence[bool], options: ParagraphOptions) -> str:
    """Return the text of a document without its repeated paragraphs, each removed with the separator after it.
    `repeated`: whether each paragraph that is long enough is repeated."""
    pieces = _split_document(document, options)
    for (index, _), cut in zip(_numbered_paragraphs(pieces, options), repeated, strict=True):
        if cut:
            pieces[index] = ""
            # The last paragraph has no separator after it, so the one before it is removed.
            pieces[index + 1 if index + 1 < len(pieces) else index - 1] = ""
    return "".join(pieces)


def _split_document(document: Document, options: ParagraphOptions) -> list[str]:
    """Split a document into paragraph, separator, paragraph, and so on."""
    # Offsets of turns and parts would become invalid, and a dialogue with a gap is incoherent.
    if (document.form == "code" and not options.code) or document.notes.keys() & {"turns", "parts"}:
        return []
    return BETWEEN[options.between].split(document.text)


def _numbered_paragraphs(pieces: list[str], options: ParagraphOptions) -> list[tuple[int, str]]:
    """Return the paragraphs that are long enough to be removed, as (index in `pieces`, paragraph)."""
    paragraphs = ((index, pieces[index].strip()) for index in range(0, len(pieces), 2))
    return [(index, paragraph) for index, paragraph in paragraphs if len(paragraph) >= options.characters]
