"""Cleaning steps: each a generator over documents; one that drops a document says why, and the reason is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

from data_pipeline.document import Document, Dropped
from megaptm.errors import UserError


class Step(Protocol):
    """Takes documents in order and yields those it keeps, changed or not."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]: ...


@dataclass(frozen=True)
class Normalize:
    """One kind of line end, no blank lines around the text; every other character stays as it was written."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            text = document.text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
            yield replace(document, text=text + "\n" if "\n" in text else text)


@dataclass(frozen=True)
class DropEmpty:
    """Nothing but white space is no document."""

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            if document.text.strip():
                yield document
            else:
                dropped.add("empty", document.source, document.text)


@dataclass(frozen=True)
class DropShort:
    """Leave out what is too short to learn a sequence from."""

    characters: int = 16

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            if len(document.text.strip()) >= self.characters:
                yield document
            else:
                dropped.add(f"shorter than {self.characters} characters", document.source, document.text)


@dataclass(frozen=True)
class CutLong:
    """Make several documents of a long one, cutting after a blank line, else after a line, else where it must be.

    A book in one file is one document, of which nothing can be held out.
    """

    characters: int = 20_000

    def __post_init__(self) -> None:
        if self.characters < 1:
            raise UserError(f"cut-long: characters ({self.characters}) must be 1 or more.")

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            start = 0
            while len(document.text) - start > self.characters:
                end = self._end(document.text, start)
                yield self._piece(document, start, end)
                start = end
            yield self._piece(document, start, None) if start else document

    def _piece(self, document: Document, start: int, end: int | None) -> Document:
        return replace(document, text=document.text[start:end], source=f"{document.source}@{start}")

    def _end(self, text: str, start: int) -> int:
        """Where the piece from `start` ends: in its second half, if there is a line's end to cut at."""
        limit = start + self.characters
        for mark in ("\n\n", "\n"):
            found = text.rfind(mark, start + self.characters // 2, limit)
            if found >= 0:
                return found + len(mark)
        return limit


STEPS: dict[str, type] = {
    "normalize": Normalize,
    "drop-empty": DropEmpty,
    "drop-short": DropShort,
    "cut-long": CutLong,
}
"""How a recipe calls them."""

CLEAN: tuple[Step, ...] = (Normalize(), DropEmpty(), DropShort())
"""What a corpus goes through when its recipe names no steps."""


def run_steps(steps: Sequence[Step], documents: Iterator[Document], dropped: Dropped) -> Iterator[Document]:
    """Each step reads what the one before it yields."""
    return reduce(lambda stream, step: step(stream, dropped), steps, documents)
