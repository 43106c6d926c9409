"""Source of a recipe, and the files found for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

from data_pipeline.document import OnError
from megaptm.errors import UserError

__all__ = ["DocumentUnit", "Html", "InputFile", "OnError", "Source", "Span"]

DocumentUnit = Literal["file", "line", "blank-line"]
Html = Literal["main", "all"]

NAMED_FIELD = re.compile(r"\{([^{}]+)\}")
"""Pattern of a field name in a part that combines several fields."""
MIN_UNPACKED = 1 << 30
"""Bytes that any file may unpack to, whatever its size."""
MARKUP = ("headers", "lists", "tables")
"""Markup of an article that can be left out."""


@dataclass(frozen=True)
class Source:
    """Files of one kind, and how to read them."""

    path: str
    """Path, folder, glob or URL; or `python-library`, text that every machine has."""
    _: KW_ONLY
    format: str | None = None
    """Format of the files. Default: the format that each file's suffix implies. If set, a folder's files with a suffix
    of the format, or all matches of a glob."""
    text: str = "text"
    """Name of the field that holds the text (records of any format)."""
    messages: str | None = None
    """Name of the field that holds a conversation, a list of {role, content}, instead of `text` (JSON lines)."""
    parts: tuple[str, ...] = ()
    """Fields that hold the parts of a document, instead of `text` (records of any format).

    Examples: a sentence and its translation, an input and its answer. A part can combine several fields, with their
    names in braces: `question: {question} context: {context}`.
    """
    aligned: str | None = None
    """Suffix of an aligned file beside each text file. Line n of both files makes one document of two parts. Example:
    `.de` for train.en and train.de."""
    prefix: str = ""
    """Task prefix of the first part: `translate English to German: `."""
    keep: tuple[str, ...] = ()
    """Fields retained as notes of the document, such as `url` or `language` (records of any format)."""
    domain: str = ""
    """Domain of the documents, such as `books`: their note `domain`, for the key `groups` of a recipe."""
    documents: DocumentUnit = "file"
    """Unit of a document in plain text, Markdown and code: a file, a line, or a paragraph between blank lines."""
    encoding: str = "utf-8"
    """Text encoding. Text, JSON lines, CSV: a Python codec, or `auto`: UTF-8, else by a byte order mark, else guessed.
    HTML: codec of pages that are not UTF-8; it takes precedence over the codec that a page declares."""
    delimiter: str | None = None
    """Delimiter of CSV files, one character. Default: tab for `.tsv`, else comma."""
    quotes: bool = True
    """Whether quotation marks of CSV files enclose fields. If false they are text, as in most files of translations."""
    columns: tuple[str, ...] = ()
    """Column names of CSV files that have no header line."""
    html: Html = "main"
    """Whether to extract the main content of an HTML or WARC page, or all of its text."""
    leave_out: tuple[str, ...] = MARKUP
    """Wikipedia markup to remove: `headers`, `lists`, `tables`, as in BERT's corpus (arXiv:1810.04805, section 3.1)."""
    incomplete: bool = False
    """Whether shards of a dataset, such as `train-00001-of-00003.parquet`, may be missing."""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of the files whose names match a glob, by glob: `{"reviews*.jsonl": {text: content}}`."""
    max_bytes: int | None = None
    """Maximum bytes of a line, row, JSON value, web page or article. Default: 256 MiB for a line, row or value, 64 MiB
    for a web page, 4 MiB for an article."""
    max_expansion: int = 100
    """Maximum ratio of unpacked to compressed size. It applies to files and archives that unpack to more than 1 GiB."""

    def __post_init__(self) -> None:
        from data_pipeline.sources.formats import FORMATS  # formats read sources

        known: dict[str, tuple[str, ...]] = {"format": (*FORMATS,)} if self.format is not None else {}
        known |= {"documents": get_args(DocumentUnit), "html": get_args(Html)}
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                raise UserError(f"source {self.path}: {name} ({value}) must be one of {', '.join(values)}.")
        if unknown := sorted(set(self.leave_out) - set(MARKUP)):
            raise UserError(f"source {self.path}: leave_out ({unknown[0]}) must be one of {', '.join(MARKUP)}.")
        if len(self.parts) == 1 or len({*self.parts}) < len(self.parts):
            raise UserError(
                f"source {self.path}: parts ({', '.join(self.parts)}) must be two or more different fields."
            )
        if sum((bool(self.parts), self.messages is not None, self.aligned is not None)) > 1:
            raise UserError(f"source {self.path}: set only one of parts, messages and aligned.")
        if self.aligned is not None and not re.fullmatch(r"\.[^./\\]+", self.aligned):
            raise UserError(f"source {self.path}: aligned ({self.aligned}) must be a suffix, such as .de.")
        if self.prefix and not self.has_parts:
            raise UserError(f"source {self.path}: prefix needs parts or aligned: set one of them, or remove prefix.")
        if self.delimiter is not None and not (len(self.delimiter) == 1 and self.delimiter.isascii()):
            raise UserError(f"source {self.path}: delimiter ({self.delimiter}) must be one ASCII character.")
        if len({*self.columns}) < len(self.columns):
            raise UserError(f"source {self.path}: columns ({', '.join(self.columns)}) must be different names.")
        if missing := [name for name in (*self.fields, *self.keep) if self.columns and name not in self.columns]:
            raise UserError(f"source {self.path}: columns ({', '.join(self.columns)}) do not include `{missing[0]}`.")
        for name in ("max_bytes", "max_expansion"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"source {self.path}: {name} ({value}) must be 1 or more.")
        if self.encoding != "auto" and not _is_codec(self.encoding):
            raise UserError(
                f"source {self.path}: encoding ({self.encoding}) is not a Python codec: use utf-8, latin-1, auto, ..."
            )

    @property
    def has_parts(self) -> bool:
        """Whether documents of the source consist of several parts."""
        return bool(self.parts) or self.aligned is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of a source's record that hold its text or its parts."""
        named = (NAMED_FIELD.findall(part) or [part] for part in self.parts)
        return tuple(dict.fromkeys(chain(*named))) or (self.text,)

    def with_prefix(self, texts: Sequence[str]) -> list[str]:
        """Return the parts of a document with the source's prefix before the first. A blank first part gets no prefix,
        so that the document is still dropped as empty."""
        return [self.prefix * (not texts[0].isspace() and bool(texts[0])) + texts[0], *texts[1:]]


def _is_codec(name: str) -> bool:
    try:
        return bool("\n".encode(name))
    except (LookupError, UnicodeError):
        return False


@dataclass(frozen=True)
class InputFile:
    """File of a source. Its documents carry `name`, which does not depend on the machine."""

    path: str
    """Local path or URL of the file."""
    name: str
    size: int
    """Bytes of the file on disk, before decompression; 0 if the server does not report it."""
    version: str = ""
    """Value that changes with the content of the file: modification time in nanoseconds, or the server's ETag."""
    source: Source = field(default_factory=lambda: Source(""))
    attached: str | None = None
    """Path or URL of the file that the text of this one describes, for formats of documents with files."""
    aligned: InputFile | None = None
    """Aligned text file, whose lines are the second parts of the documents."""
    label: str = ""
    """Name shown to the user instead of the path, if the path is that of a temporary copy."""

    @property
    def max_unpacked(self) -> float:
        """Return the maximum bytes of a source file after decompression."""
        return max(MIN_UNPACKED, self.source.max_expansion * self.size) if self.size else float("inf")

    @property
    def shown_path(self) -> str:
        return self.label or self.path


@dataclass(frozen=True)
class Span:
    """Part of a source file: the documents whose first byte is in [start, stop). They do not depend on how the file is
    cut."""

    file: InputFile
    start: int = 0
    stop: int | None = None
    """End of the span in bytes; None for the end of the file."""

    @property
    def end(self) -> float:
        return float("inf") if self.stop is None else self.stop
