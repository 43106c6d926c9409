"""What a recipe says of a pile of text, and the files that are found there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

from data_pipeline.document import OnError
from megaptm.errors import UserError

FormatName = Literal[
    "text", "markdown", "code", "json-lines", "csv", "parquet", "html", "warc", "wikipedia", "image-text"
]
__all__ = ["DocumentUnit", "FormatName", "Html", "InputFile", "OnError", "Source", "Span"]

DocumentUnit = Literal["file", "line", "blank-line"]
Html = Literal["main", "all"]

NAMED_FIELD = re.compile(r"\{([^{}]+)\}")
"""The name of a field, in a part that is made of several."""
MIN_UNPACKED = 1 << 30
"""Bytes that every file may unpack to."""
MARKUP = ("headers", "lists", "tables")
"""What of an article's markup can be left out."""


@dataclass(frozen=True)
class Source:
    """Files of one kind, and how to read them."""

    path: str
    """A file, a folder, a glob or a URL of these; or `python-library`, text that every machine has."""
    _: KW_ONLY
    format: FormatName | None = None
    """Absent: by each file's suffix. Given: a folder's files with a suffix of it, or all that a glob matches."""
    text: str = "text"
    """JSON lines, CSV, Parquet, image-text: the field that holds the text."""
    messages: str | None = None
    """JSON lines: the field that holds a conversation, a list of {role, content}, in the place of a text."""
    parts: tuple[str, ...] = ()
    """JSON lines, CSV, Parquet: fields whose texts are the parts of a document, in the place of a text: a sentence and
    its translation, an input and its answer. A part of several fields is written with their names in braces:
    `question: {question} context: {context}`."""
    aligned: str | None = None
    """Text: suffix of the file beside each, whose lines are the second parts of documents that its own lines begin:
    `.de` for train.en and train.de."""
    prefix: str = ""
    """What stands before the first of parts, to tell the task: `translate English to German: `."""
    keep: tuple[str, ...] = ()
    """JSON lines, CSV, Parquet, image-text: fields kept as the document's notes, such as `url` or `language`."""
    documents: DocumentUnit = "file"
    """Plain text, Markdown, code: a document is a whole file, a line, or what stands between blank lines."""
    encoding: str = "utf-8"
    """Text, JSON lines, CSV: a codec that Python knows, or `auto`: UTF-8, else by a byte order mark, else a guess.
    HTML: a codec for pages that are not UTF-8, before what they say themselves."""
    delimiter: str | None = None
    """CSV: one character; absent: a tab for `.tsv`, else a comma."""
    columns: tuple[str, ...] = ()
    """CSV: names of the columns of files that begin with their first row, in the place of a line with the names."""
    html: Html = "main"
    """HTML, WARC: of a page its main content, or all of its text."""
    leave_out: tuple[str, ...] = MARKUP
    """Wikipedia: `headers`, `lists`, `tables`, as BERT's corpus does without (arXiv:1810.04805, section 3.1)."""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Glob of names -> other settings for the files that match: `{"reviews*.jsonl": {text: content}}`."""
    max_bytes: int | None = None
    """Bytes of a line, row, JSON value, web page or article, at most; absent: 256 MiB of a line, row or value, 64 MiB
    of a web page, 4 MiB of an article."""
    max_expansion: int = 100
    """A compressed file or archive that unpacks to more than 1 GiB may unpack to so many times its size."""

    def __post_init__(self) -> None:
        for name, kind in (("format", FormatName), ("documents", DocumentUnit), ("html", Html)):
            value = getattr(self, name)
            if value not in get_args(kind) and (name, value) != ("format", None):
                raise UserError(f"source {self.path}: {name} ({value}) must be one of {', '.join(get_args(kind))}.")
        if unknown := sorted(set(self.leave_out) - set(MARKUP)):
            raise UserError(f"source {self.path}: leave_out ({unknown[0]}) must be one of {', '.join(MARKUP)}.")
        if len(self.parts) == 1 or len({*self.parts}) < len(self.parts):
            raise UserError(f"source {self.path}: parts ({', '.join(self.parts)}) must be several different fields.")
        if sum((bool(self.parts), self.messages is not None, self.aligned is not None)) > 1:
            raise UserError(
                f"source {self.path}: documents come from one of parts, messages and aligned: remove the rest."
            )
        if self.aligned is not None and not re.fullmatch(r"\.[^./\\]+", self.aligned):
            raise UserError(f"source {self.path}: aligned ({self.aligned}) must be a suffix, such as .de.")
        if self.prefix and not self.has_parts:
            raise UserError(f"source {self.path}: prefix stands before the first of parts: give parts, or aligned.")
        if self.delimiter is not None and not (len(self.delimiter) == 1 and self.delimiter.isascii()):
            raise UserError(f"source {self.path}: delimiter ({self.delimiter}) must be one ASCII character.")
        if len({*self.columns}) < len(self.columns):
            raise UserError(f"source {self.path}: columns ({', '.join(self.columns)}) must be different names.")
        if lacking := [name for name in (*self.fields, *self.keep) if self.columns and name not in self.columns]:
            raise UserError(f"source {self.path}: columns ({', '.join(self.columns)}) do not name `{lacking[0]}`.")
        for name in ("max_bytes", "max_expansion"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"source {self.path}: {name} ({value}) must be 1 or more.")
        if self.encoding != "auto" and not _is_codec(self.encoding):
            raise UserError(
                f"source {self.path}: encoding ({self.encoding}) is not known to Python: use utf-8, latin-1, auto, ..."
            )

    @property
    def has_parts(self) -> bool:
        """Whether its documents are of several texts."""
        return bool(self.parts) or self.aligned is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a record that hold its text, or its texts."""
        named = (NAMED_FIELD.findall(part) or [part] for part in self.parts)
        return tuple(dict.fromkeys(chain(*named))) or (self.text,)

    def with_prefix(self, texts: Sequence[str]) -> list[str]:
        """The texts of a document, with the prefix before the first, if that is not blank: it would not be left out."""
        return [self.prefix * (not texts[0].isspace() and bool(texts[0])) + texts[0], *texts[1:]]


def _is_codec(name: str) -> bool:
    try:
        return bool("\n".encode(name))
    except (LookupError, UnicodeError):
        return False


@dataclass(frozen=True)
class InputFile:
    """A file to read, and the name its documents carry, which does not depend on the machine."""

    path: str
    """Local path or URL."""
    name: str
    size: int
    """Bytes, as they lie there; 0 where the server does not say."""
    version: str = ""
    """Another one when the content is another: nanoseconds of the last change, or the server's etag."""
    source: Source = field(default_factory=lambda: Source(""))
    image: str | None = None
    """Image-text: path or URL of the image whose caption this file is."""
    aligned: InputFile | None = None
    """Text: the file whose lines are the second parts of what its lines begin."""
    label: str = ""
    """What people are told instead of the path, where that is of a copy."""

    @property
    def max_unpacked(self) -> float:
        """Bytes that it may unpack to."""
        return max(MIN_UNPACKED, self.source.max_expansion * self.size) if self.size else float("inf")

    @property
    def place(self) -> str:
        return self.label or self.path


@dataclass(frozen=True)
class Span:
    """The documents of a file whose first byte lies in [start, stop): the same as when the whole is read."""

    file: InputFile
    start: int = 0
    stop: int | None = None
    """None: to the end."""

    @property
    def end(self) -> float:
        return float("inf") if self.stop is None else self.stop
