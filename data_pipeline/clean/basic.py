"""Steps for any text: normalize line ends, drop by length or share of letters, cut long documents."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from data_pipeline.annotate.parts import document_parts
from data_pipeline.clean.step import Change, Filter, require_minimum, require_shares, with_text
from data_pipeline.clean.words import has_words
from data_pipeline.document import Document, DropCounts


@dataclass(frozen=True)
class Normalize(Change):
    """Convert line ends to `\n` and remove blank lines around the text. Other characters are unchanged."""

    def change(self, text: str) -> str:
        text = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        return text + "\n" if "\n" in text else text


@dataclass(frozen=True)
class DropEmpty(Filter):
    """Drop a document that is empty or only white space, or that has such a part."""

    def reason(self, document: Document) -> str | None:
        return None if all(part.strip() for part in document_parts(document)) else "empty"


@dataclass(frozen=True)
class DropShort(Filter):
    """Drop a document that is too short to be a useful sample."""

    characters: int = 16
    words: int = 0
    """Minimum words of a document, separated by white space or in a script without spaces."""

    def __post_init__(self) -> None:
        require_minimum(0, self, "drop-short", "characters", "words")

    def reason(self, document: Document) -> str | None:
        if len(document.text.strip()) < self.characters:
            return f"shorter than {self.characters} characters"
        if self.words and not has_words(document.text, self.words):
            return f"shorter than {self.words} words"
        return None


@dataclass(frozen=True)
class DropLong(Filter):
    """Drop long documents, for example captions that contain a whole page."""

    characters: int = 1_000
    words: int = 0
    """Maximum words of a document, separated by white space or in a script without spaces; 0 means no limit."""

    def __post_init__(self) -> None:
        require_minimum(1, self, "drop-long", "characters")
        require_minimum(0, self, "drop-long", "words")

    def reason(self, document: Document) -> str | None:
        if len(document.text.strip()) > self.characters:
            return f"longer than {self.characters:,} characters"
        if self.words and has_words(document.text, self.words + 1):
            return f"longer than {self.words:,} words"
        return None


@dataclass(frozen=True)
class DropFewLetters(Filter):
    """Drop a document that consists mostly of digits, punctuation and symbols: file names, prices, dates."""

    share: float = 0.5
    """Minimum share of letters of any script among the characters that are not white space."""

    def __post_init__(self) -> None:
        require_shares(self, "drop-few-letters", "share")

    def reason(self, document: Document) -> str | None:
        characters = "".join(document.text.split())
        # Combining marks, such as the vowel signs of Hindi, count as letters.
        letters = sum(unicodedata.category(character)[0] in "LM" for character in characters)
        return f"less than {self.share:.0%} letters" if letters < self.share * len(characters) else None


@dataclass(frozen=True)
class CutLong:
    """Cut a long document into several: after a blank line, else after a line, else at the maximum length.

    Without cuts, a book in one file is one document, so no part of it could be held out.
    """

    characters: int = 20_000

    def __post_init__(self) -> None:
        require_minimum(1, self, "cut-long", "characters")

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            start = 0
            while len(document.text) - start > self.characters:
                end = self._piece_end(document.text, start)
                yield cut_piece(document, start, end)
                start = end
            yield cut_piece(document, start, len(document.text)) if start else document

    def _piece_end(self, text: str, start: int) -> int:
        """Return where the piece of a long document that starts at `start` ends: at a line's end in its second half, if
        there is one."""
        limit = start + self.characters
        for mark in ("\n\n", "\n"):
            index = text.rfind(mark, start + self.characters // 2, limit)
            if index >= 0:
                return index + len(mark)
        return limit


def cut_piece(document: Document, start: int, end: int) -> Document:
    """Return a piece of a long document, named by its offset. Turns that start in the piece are retained."""
    piece = with_text(document, document.text[start:end])
    if "turns" in document.notes:
        turns = [[first - start, *role] for first, *role in document.notes["turns"] if start <= first < end]
        piece = replace(piece, notes={**piece.notes, "turns": turns})
    return replace(piece, source=f"{document.source}@{start}")
