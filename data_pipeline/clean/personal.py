"""Numbers that identify a person, by language: bank accounts, cards, national ids. Patterns are a table; check digits
are python-stdnum's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.clean.step import cached_by_file, import_library, require, require_minimum, with_text
from data_pipeline.document import Document, DropCounts
from megaptm.errors import UserError
from megaptm.storage import read_table_lines

TABLE = str(Path(__file__).with_name("personal.tsv"))
EVERY = "*"
STEP = "tag-personal"
TWO_DIGITS = re.compile("[0-9]{2}")
NEAR = 64
"""Characters around two digits that are searched: more than a match of the patterns of megaptm has."""


@dataclass(frozen=True)
class TagPersonal:
    """Count personal numbers in the note `personal`, and optionally replace them or drop documents."""

    table: str | None = None
    """File of patterns instead of that of megaptm, `data_pipeline/clean/personal.tsv`."""
    kinds: tuple[str, ...] | None = None
    """Kinds of numbers to find, such as `iban`. Default: all of the table."""
    replace: bool = False
    """Whether numbers are replaced by their kind: `<iban>`."""
    max_count: int | None = None
    """Maximum number of personal numbers in documents that are kept. Default: all are kept."""

    def __post_init__(self) -> None:
        require(self.kinds != (), f"{STEP}: kinds is empty: name at least one, like `iban`.")
        require_minimum(0, self, STEP, "max_count")

    def input_files(self) -> tuple[str, ...]:
        """Return the path of the file with the patterns."""
        return (self.table or TABLE,)

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        patterns, windows_of = self._patterns(), _full_text if self.table else _near_digits
        for document in documents:
            matches = [*_find_matches(document, patterns, windows_of(document.text))]
            counts = dict(sorted(Counter(kind for _, _, kind in matches).items()))
            if self.max_count is not None and len(matches) > self.max_count:
                dropped.add(f"{STEP}: more than {self.max_count} numbers", document.source, document.text)
            elif not matches:
                yield document
            elif self.replace:
                yield with_text(document, _replace(document.text, matches), personal=counts)
            else:
                yield replace(document, notes={**document.notes, "personal": counts})

    def _patterns(self) -> list[PersonalPattern]:
        table = read_patterns(self.table or TABLE)
        known = sorted({pattern.kind for pattern in table})
        for kind in self.kinds or ():
            require(kind in known, f"{STEP}: kinds ({kind}) is not in the table: use {', '.join(known)}.")
        return [pattern for pattern in table if self.kinds is None or pattern.kind in self.kinds]


@dataclass(frozen=True)
class PersonalPattern:
    """Row of a table of personal numbers."""

    language: str
    kind: str
    expression: re.Pattern[str]
    is_valid: Callable[[str], bool]
    """Check of a match, by its check digits."""


def _full_text(text: str) -> list[tuple[int, int]]:
    return [(0, len(text))]


def _near_digits(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text, as (start, end), in which the patterns of megaptm can match: `NEAR` characters around
    two digits. They are a tenth of usual text."""
    windows: list[tuple[int, int]] = []
    for digits in TWO_DIGITS.finditer(text):
        start, end = max(0, digits.start() - NEAR), digits.end() + NEAR
        if windows and start <= windows[-1][1]:
            windows[-1] = windows[-1][0], end
        else:
            windows.append((start, end))
    return windows


def _find_matches(
    document: Document, patterns: Iterable[PersonalPattern], windows: list[tuple[int, int]]
) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of the numbers in a document: the kinds of its language, or of all languages if it is
    not known. Overlapping matches count once."""
    language, text = document.notes.get("language"), document.text
    matches = [
        (*match.span("number" if "number" in pattern.expression.groupindex else 0), pattern.kind)
        for pattern in patterns
        if language is None or pattern.language in (EVERY, language)
        for window in windows
        for match in pattern.expression.finditer(text, *window)
        if pattern.is_valid(match["number" if "number" in pattern.expression.groupindex else 0])
    ]
    end = 0
    for start, stop, kind in sorted(matches):
        if start >= end:
            yield start, stop, kind
            end = stop


def _replace(text: str, matches: Iterable[tuple[int, int, str]]) -> str:
    pieces, end = [], 0
    for start, stop, kind in matches:
        pieces += [text[end:start], f"<{kind}>"]
        end = stop
    return "".join([*pieces, text[end:]])


@cached_by_file(maxsize=4)
def read_patterns(path: str) -> list[PersonalPattern]:
    """Read a table of personal numbers: lines of language, kind, module of stdnum (or empty), regular expression."""
    lines = read_table_lines(path, name=f"{STEP}: table ({path})", remedy="correct the path")
    return [_parse_pattern(line, f"{STEP}: {path}, line {number}") for number, line in lines]


def _parse_pattern(line: str, where: str) -> PersonalPattern:
    columns = line.split("\t")
    if len(columns) != 4:
        raise UserError(f"{where}: {len(columns)} columns instead of language, kind, check and expression.")
    language, kind, check, expression = columns
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise UserError(f"{where}: the expression is invalid ({error}): correct it.") from None
    if not check:
        return PersonalPattern(language, kind, compiled, lambda number: True)
    if not re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)?", check):
        raise UserError(f"{where}: {check} is not a module of stdnum, as `us.ssn`.")
    import_library("stdnum", STEP)
    try:
        is_valid: Callable[[str], bool] = import_library(f"stdnum.{check}", STEP).is_valid
    except (UserError, AttributeError):
        raise UserError(f"{where}: stdnum has no check {check}: correct it, or leave it empty.") from None
    # Some modules remove separators themselves.
    return PersonalPattern(
        language, kind, compiled, lambda number: is_valid(number) or is_valid(re.sub("[ -]", "", number))
    )
