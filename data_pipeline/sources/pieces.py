"""Long texts as several documents, so that a document always fits in memory many times over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.document import Document

LONGEST = 8 << 20
"""Characters of a document."""


def documents_of(text: str, source: str, notes: Mapping[str, Any], form: str = "prose") -> Iterator[Document]:
    """One document, or several whose texts put together are the text."""
    if len(text) <= LONGEST:
        yield Document(text, source, form, notes)
    else:
        yield from documents_of_stream((text,), source, notes, form)


def documents_of_stream(
    texts: Iterable[str], source: str, notes: Mapping[str, Any], form: str = "prose"
) -> Iterator[Document]:
    """The same of a text that comes little by little. A piece is named `source@its first character`."""
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
    """Where the piece from `start` ends: behind a blank line, else behind a line, else wherever it is full."""
    stop = start + LONGEST
    middle = start + LONGEST // 2  # not earlier: that would make many small pieces
    blank = max(text.rfind("\n\n", middle, stop) + 2, text.rfind("\n\r\n", middle, stop) + 3)
    if blank > middle:
        return blank
    return text.rfind("\n", middle, stop) + 1 or stop


def _of_piece(notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what counts characters of the whole text."""
    return {name: value for name, value in notes.items() if name not in ("turns", "parts")}
