"""Pairs of clauses labeled with the connective between them, extracted from plain text for the objective
`discourse`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from data_pipeline.annotate.dictionary import read_words
from data_pipeline.annotate.parts import text_and_parts
from data_pipeline.annotate.sentences import sentence_starts
from data_pipeline.clean.step import require_minimum
from data_pipeline.document import Document, DropCounts
from megaptm.errors import UserError

SETTING = "pair-by-connective: connectives"
SHIPPED = Path(__file__).with_name("connectives.tsv")
COMMAS = ",，"  # noqa: RUF001
CLAUSE = re.compile(r"[,;，；]\s*")  # noqa: RUF001
MAX_SENTENCE = 1000
"""Maximum characters of a sentence that is divided at commas. Each of its connectives makes a document of its size, so
that a long list of clauses would fill the memory."""
BLANK_LINE = re.compile(r"\n[ \t]*\n\s*\Z")
AROUND = " \t\n,;:，；："  # noqa: RUF001


@dataclass(frozen=True)
class PairByConnective:
    """Make one document per connective: two clauses as parts, and the connective, which is removed, as the label.

    A connective at the start of a sentence joins the sentence before and its own; within a sentence it joins the
    clauses around it (ERNIE 2.0, arXiv:1907.12412, 4.2.3). A document without a connective is dropped.
    """

    connectives: str | None = None
    """File of connectives in the format of `connectives.tsv` in this folder, the default (English and Chinese)."""
    min_bytes: int = 8
    """Minimum UTF-8 bytes of each part: two short words, or three Chinese characters."""

    def __post_init__(self) -> None:
        require_minimum(1, self, "pair-by-connective", "min_bytes")
        self.labels()

    @property
    def _file(self) -> str:
        return str(SHIPPED) if self.connectives is None else self.connectives

    def input_files(self) -> tuple[str, ...]:
        return (self._file,)

    def labels(self) -> tuple[str, ...]:
        """Return the labels that pairs of clauses can have, in the order of the file of connectives."""
        return _read_connectives(self._file).labels

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            pairs = [*self._cut_pairs(document)]
            if not pairs:
                dropped.add("pair-by-connective: no connective", document.source, document.text)
            yield from pairs

    def _cut_pairs(self, document: Document) -> Iterator[Document]:
        notes = {name: note for name, note in document.notes.items() if name != "turns"}
        for at, first, label, second in _read_connectives(self._file).find_pairs(document.text, document.form):
            if min(len(part.encode("utf-8", "replace")) for part in (first, second)) >= self.min_bytes:
                text, parts = text_and_parts([first, second])
                pair = replace(document, text=text, source=f"{document.source}@{at}")
                yield replace(pair, notes={**notes, **parts, "label": label})


@dataclass(frozen=True)
class Connectives:
    """Connectives of a file, with compiled patterns."""

    names: dict[str, str]
    """Connective in lower case with single spaces -> label."""
    anywhere: re.Pattern[str]
    """Connectives that may start a sentence or a clause."""
    within: re.Pattern[str]
    """Connectives that may start a clause within a sentence."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.names.values()))

    def find_pairs(self, text: str, form: str) -> Iterator[tuple[int, str, str, str]]:
        """Find connectives in a text: yield the offset of each, the clause before, the label, and the clause after."""
        before = ""
        for begin, end in pairwise([*sentence_starts(text, form).tolist(), len(text)]):
            if before and (match := self.anywhere.match(text, begin, end)):
                yield begin, before, self._label_of_match(match), text[match.end() : end].strip(AROUND)
            for comma in CLAUSE.finditer(text, begin, end) if end - begin <= MAX_SENTENCE else ():
                if match := self.within.match(text, comma.end(), end):
                    first, second = text[begin : comma.start()], text[match.end() : end]
                    yield match.start(), first.strip(AROUND), self._label_of_match(match), second.strip(AROUND)
            sentence = text[begin:end]
            # Text above a blank line, such as a heading, is unrelated to the text below.
            before = "" if BLANK_LINE.search(sentence) else sentence.strip(AROUND)

    def _label_of_match(self, match: re.Match[str]) -> str:
        return self.names[_normalize_connective(match[0])]


@lru_cache(maxsize=8)
def _read_connectives(path: str) -> Connectives:
    names: dict[str, str] = {}
    anywhere, within = [], []
    for line in read_words(path, SETTING):
        label, _, written = (part.strip() for part in line.rpartition("\t"))
        name = _normalize_connective(written)
        if not name:
            raise UserError(f"{SETTING}: {path} has a line without a connective ({line}): correct it.")
        if names.setdefault(name, label or name) != (label or name):
            raise UserError(f"{SETTING}: {path} gives `{name}` a second label: remove one.")
        ending = f"(?=[{COMMAS}])" if written[-1] in COMMAS else r"\b" if name[-1].isascii() else ""
        within.append(pattern := r"\s+".join(map(re.escape, name.split())) + ending)
        if written[0] not in COMMAS:
            anywhere.append(pattern)
    return Connectives(names, _longest_first_pattern(anywhere), _longest_first_pattern(within))


OLD_LETTERS = str.maketrans({"ı": "i", "ſ": "s"})  # noqa: RUF001
"""Letters that a case-insensitive pattern equates with another letter but `lower` does not."""


def _normalize_connective(written: str) -> str:
    """Normalize a connective: lower case, single spaces, without its commas."""
    return " ".join(written.strip(f"{COMMAS} ").lower().translate(OLD_LETTERS).split())


def _longest_first_pattern(patterns: list[str]) -> re.Pattern[str]:
    """Compile a pattern of connectives that prefers the longest alternative. An empty list matches nothing."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or r"(?!)", re.IGNORECASE)
