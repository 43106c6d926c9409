"""Split long texts into several documents, so that a document fits in memory many times over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.document import Document

MAX_DOCUMENT_CHARACTERS = 8 << 20
"""Maximum number of characters of a document."""


def to_documents(text: str, source: str, notes: Mapping[str, Any], form: str = "prose") -> Iterator[Document]:
    """Yield a long text as documents: one, or several whose concatenated texts are `text`."""
    if len(text) <= MAX_DOCUMENT_CHARACTERS:
        yield Document(text, source, form, notes)
    else:
        yield from stream_to_documents((text,), source, notes, form)


def stream_to_documents(
    texts: Iterable[str], source: str, notes: Mapping[str, Any], form: str = "prose"
) -> Iterator[Document]:
    """Yield documents of a long text that arrives in parts. A further document is named `source@offset`, in
    characters."""
    at, held, size = 0, [], 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size <= MAX_DOCUMENT_CHARACTERS:
            continue
        joined, done = "".join(held), 0
        while len(joined) - done > MAX_DOCUMENT_CHARACTERS:
            stop = _piece_end(joined, done)
            yield Document(joined[done:stop], f"{source}@{at + done}", form, _notes_of_piece(notes))
            done = stop
        at, held, size = at + done, [joined[done:]], len(joined) - done
    if at:
        yield Document("".join(held), f"{source}@{at}", form, _notes_of_piece(notes))
    elif held:
        yield Document("".join(held), source, form, notes)


def _piece_end(text: str, start: int) -> int:
    """Return the end of the document that starts at `start`: after a blank line, else after a line, else at the
    maximum."""
    stop = start + MAX_DOCUMENT_CHARACTERS
    middle = start + MAX_DOCUMENT_CHARACTERS // 2  # an earlier cut would make many small documents
    blank = max(text.rfind("\n\n", middle, stop) + 2, text.rfind("\n\r\n", middle, stop) + 3)
    if blank > middle:
        return blank
    return text.rfind("\n", middle, stop) + 1 or stop


def _notes_of_piece(notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the notes of a piece of a document, without those that hold character offsets in the full text."""
    return {name: value for name, value in notes.items() if name not in ("turns", "parts")}
