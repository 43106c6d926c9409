"""Steps for any text: line ends, empty, short and long documents, those of few letters; long ones cut."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from data_pipeline.annotate.parts import parts_of
from data_pipeline.clean.step import Change, Filter, require_least, require_shares, with_text
from data_pipeline.document import Document, Dropped


@dataclass(frozen=True)
class Normalize(Change):
    """One kind of line end, no blank lines around the text; every other character stays as it was written."""

    def change(self, text: str) -> str:
        text = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        return text + "\n" if "\n" in text else text


@dataclass(frozen=True)
class DropEmpty(Filter):
    """Nothing but white space is no document, and no part of one."""

    def reason(self, document: Document) -> str | None:
        return None if all(part.strip() for part in parts_of(document)) else "empty"


@dataclass(frozen=True)
class DropShort(Filter):
    """Leave out what is too short to learn a sequence from."""

    characters: int = 16
    words: int = 0
    """White space divides words here."""

    def __post_init__(self) -> None:
        require_least(0, self, "drop-short", "characters", "words")

    def reason(self, document: Document) -> str | None:
        if len(document.text.strip()) < self.characters:
            return f"shorter than {self.characters} characters"
        if self.words and len(document.text.split(maxsplit=self.words)) < self.words:
            return f"shorter than {self.words} words"
        return None


@dataclass(frozen=True)
class DropLong(Filter):
    """Leave out what is longer than texts of its kind are: of captions, pages that came with them."""

    characters: int = 1_000
    words: int = 0
    """White space divides words here; 0: any number."""

    def __post_init__(self) -> None:
        require_least(1, self, "drop-long", "characters")
        require_least(0, self, "drop-long", "words")

    def reason(self, document: Document) -> str | None:
        if len(document.text.strip()) > self.characters:
            return f"longer than {self.characters:,} characters"
        if self.words and len(document.text.split(maxsplit=self.words)) > self.words:
            return f"longer than {self.words:,} words"
        return None


@dataclass(frozen=True)
class DropFewLetters(Filter):
    """Leave out what is mostly numbers, marks and signs: file names, prices, dates."""

    share: float = 0.5
    """Letters, of any script, among all that is no white space."""

    def __post_init__(self) -> None:
        require_shares(self, "drop-few-letters", "share")

    def reason(self, document: Document) -> str | None:
        seen = "".join(document.text.split())
        # Marks that belong to letters, as the vowels of Hindi do, are letters here.
        letters = sum(unicodedata.category(character)[0] in "LM" for character in seen)
        return f"letters are less than {self.share:.0%}" if letters < self.share * len(seen) else None


@dataclass(frozen=True)
class CutLong:
    """Make several documents of a long one, cutting after a blank line, else after a line, else where it must be.

    A book in one file is one document, of which nothing can be held out.
    """

    characters: int = 20_000

    def __post_init__(self) -> None:
        require_least(1, self, "cut-long", "characters")

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            start = 0
            while len(document.text) - start > self.characters:
                end = self._end(document.text, start)
                yield piece(document, start, end)
                start = end
            yield piece(document, start, len(document.text)) if start else document

    def _end(self, text: str, start: int) -> int:
        """Where the piece from `start` ends: in its second half, if there is a line's end to cut at."""
        limit = start + self.characters
        for mark in ("\n\n", "\n"):
            found = text.rfind(mark, start + self.characters // 2, limit)
            if found >= 0:
                return found + len(mark)
        return limit


def piece(document: Document, start: int, end: int) -> Document:
    """A part of a document, known by where it begins; speakers' turns that begin in it stay with it."""
    part = with_text(document, document.text[start:end])
    if "turns" in document.notes:
        turns = [[first - start, *role] for first, *role in document.notes["turns"] if start <= first < end]
        part = replace(part, notes={**part.notes, "turns": turns})
    return replace(part, source=f"{document.source}@{start}")
