"""Split long texts into several documents, so that a document fits in memory many times over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.document import Document

LONGEST = 8 << 20
"""Maximum number of characters of a document."""


def documents_of(text: str, source: str, notes: Mapping[str, Any], form: str = "prose") -> Iterator[Document]:
    """Yield one document, or several whose concatenated texts are `text`."""
    if len(text) <= LONGEST:
        yield Document(text, source, form, notes)
    else:
        yield from documents_of_stream((text,), source, notes, form)


def documents_of_stream(
    texts: Iterable[str], source: str, notes: Mapping[str, Any], form: str = "prose"
) -> Iterator[Document]:
    """Yield documents of a text that arrives in parts. A further document is named `source@offset`, in characters."""
    at, held, size = 0, [], 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size <= LONGEST:
            continue
        whole, done = "".join(held), 0
        while len(whole) - done > LONGEST:
            stop = _cut(whole, done)
            yield Document(whole[done:stop], f"{source}@{at + done}", form, _of_piece(notes))
            done = stop
        at, held, size = at + done, [whole[done:]], len(whole) - done
    if at:
        yield Document("".join(held), f"{source}@{at}", form, _of_piece(notes))
    elif held:
        yield Document("".join(held), source, form, notes)


def _cut(text: str, start: int) -> int:
    """Return the end of the document that starts at `start`: after a blank line, else after a line, else at the
    maximum."""
    stop = start + LONGEST
    middle = start + LONGEST // 2  # an earlier cut would make many small documents
    blank = max(text.rfind("\n\n", middle, stop) + 2, text.rfind("\n\r\n", middle, stop) + 3)
    if blank > middle:
        return blank
    return text.rfind("\n", middle, stop) + 1 or stop


def _of_piece(notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the notes without those that hold character offsets in the full text."""
    return {name: value for name, value in notes.items() if name not in ("turns", "parts")}
