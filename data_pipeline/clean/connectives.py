"""Pairs of clauses between which a connective stood, labeled by it: made from plain text, for `discourse`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from data_pipeline.annotate.dictionary import read_words
from data_pipeline.annotate.parts import text_and_parts
from data_pipeline.annotate.sentences import sentence_begins
from data_pipeline.clean.step import require_least
from data_pipeline.document import Document, Dropped
from megaptm.errors import UserError

SETTING = "pair-by-connective: connectives"
SHIPPED = Path(__file__).with_name("connectives.tsv")
COMMAS = ",，"  # noqa: RUF001
CLAUSE = re.compile(r"[,;，；]\s*")  # noqa: RUF001
BLANK_LINE = re.compile(r"\n[ \t]*\n\s*\Z")
AROUND = " \t\n,;:，；："  # noqa: RUF001


@dataclass(frozen=True)
class PairByConnective:
    """Make a document of each two clauses with a connective between them: two parts, without it, and it is the label.

    The first is the sentence before, where the connective begins one, or what stands before it in its own; the second
    is the rest of its sentence (ERNIE 2.0, arXiv:1907.12412, 4.2.3). A document without any is left out.
    """

    connectives: str | None = None
    """A file of them, as `connectives.tsv` beside this one, which is taken where none is named: English and Chinese."""
    least_bytes: int = 8
    """Of either part, in UTF-8: two short words, or three characters of Chinese."""

    def __post_init__(self) -> None:
        require_least(1, self, "pair-by-connective", "least_bytes")
        self.labels()

    @property
    def _file(self) -> str:
        return str(SHIPPED) if self.connectives is None else self.connectives

    def inputs(self) -> tuple[str, ...]:
        return (self._file,)

    def labels(self) -> tuple[str, ...]:
        """All that documents may have, in the order of the file."""
        return _read(self._file).labels

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            pairs = [*self._pairs(document)]
            if not pairs:
                dropped.add("pair-by-connective: no connective", document.source, document.text)
            yield from pairs

    def _pairs(self, document: Document) -> Iterator[Document]:
        notes = {name: note for name, note in document.notes.items() if name != "turns"}
        for at, first, label, second in _read(self._file).found(document.text, document.form):
            if min(len(one.encode("utf-8", "replace")) for one in (first, second)) >= self.least_bytes:
                text, parts = text_and_parts([first, second])
                pair = replace(document, text=text, source=f"{document.source}@{at}")
                yield replace(pair, notes={**notes, **parts, "label": label})


@dataclass(frozen=True)
class Connectives:
    """Those of a file, ready to be looked for."""

    names: dict[str, str]
    """As in the text, in small letters and with single spaces -> label."""
    anywhere: re.Pattern[str]
    """At the beginning of a sentence, or of a clause."""
    within: re.Pattern[str]
    """At the beginning of a clause that begins no sentence."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.names.values()))

    def found(self, text: str, form: str) -> Iterator[tuple[int, str, str, str]]:
        """The first character of a connective, what stands before it, its label, and what stands behind."""
        before = ""
        for begin, end in pairwise([*sentence_begins(text, form).tolist(), len(text)]):
            if before and (match := self.anywhere.match(text, begin, end)):
                yield begin, before, self._label(match), text[match.end() : end].strip(AROUND)
            for comma in CLAUSE.finditer(text, begin, end):
                if match := self.within.match(text, comma.end(), end):
                    first, second = text[begin : comma.start()], text[match.end() : end]
                    yield match.start(), first.strip(AROUND), self._label(match), second.strip(AROUND)
            sentence = text[begin:end]
            # What stands above a blank line, such as a heading, has nothing to do with what stands below.
            before = "" if BLANK_LINE.search(sentence) else sentence.strip(AROUND)

    def _label(self, match: re.Match[str]) -> str:
        return self.names[_plain(match[0])]


@lru_cache(maxsize=8)
def _read(path: str) -> Connectives:
    names: dict[str, str] = {}
    anywhere, within = [], []
    for line in read_words(path, SETTING):
        label, _, written = (part.strip() for part in line.rpartition("\t"))
        name = _plain(written)
        if not name:
            raise UserError(f"{SETTING}: {path} has a line without a connective ({line}): correct it.")
        if names.setdefault(name, label or name) != (label or name):
            raise UserError(f"{SETTING}: {path} gives `{name}` a second label: leave one.")
        ending = f"(?=[{COMMAS}])" if written[-1] in COMMAS else r"\b" if name[-1].isascii() else ""
        within.append(pattern := r"\s+".join(map(re.escape, name.split())) + ending)
        if written[0] not in COMMAS:
            anywhere.append(pattern)
    return Connectives(names, _any_of(anywhere), _any_of(within))


OLD_LETTERS = str.maketrans({"ı": "i", "ſ": "s"})  # noqa: RUF001
"""What an expression that passes over case takes for another letter, and `lower` does not."""


def _plain(written: str) -> str:
    """A connective without its commas."""
    return " ".join(written.strip(f"{COMMAS} ").lower().translate(OLD_LETTERS).split())


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    """The longest of them that fits; with none, what fits nothing."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or r"(?!)", re.IGNORECASE)
