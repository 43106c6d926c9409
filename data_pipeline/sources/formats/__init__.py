"""Table of formats: suffixes, reader, and whether a file can be read from the middle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath
from typing import Literal

from data_pipeline.document import Document
from data_pipeline.sources.archives import archive_kind
from data_pipeline.sources.compression import compression_of, has_unsupported_compression, without_compression
from data_pipeline.sources.formats.arrow import read_arrow
from data_pipeline.sources.formats.csv import read_csv
from data_pipeline.sources.formats.html import read_html
from data_pipeline.sources.formats.json_lines import read_json_lines
from data_pipeline.sources.formats.mds import read_mds
from data_pipeline.sources.formats.parquet import read_parquet
from data_pipeline.sources.formats.text import read_code, read_text
from data_pipeline.sources.formats.warc import read_warc
from data_pipeline.sources.formats.wikipedia import read_wikipedia
from data_pipeline.sources.listing import Listing
from data_pipeline.sources.source import InputFile, Source, Span
from data_pipeline.sources.unreadable import UnreadableHandler
from megaptm.families import Registry, contributions

# fmt: off
CODE = frozenset({
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh", ".pl",
    ".lua", ".r", ".jl", ".scala", ".kt", ".swift", ".cs", ".php", ".sql", ".css", ".tex", ".toml", ".ini",
    ".cfg", ".yaml", ".yml",
})
# fmt: on
# Parts of a dump are named `...-pages-articles1.xml-p1p41242.bz2`.
DUMP = re.compile(r"-pages-(articles|meta)\S*\.xml(-p\d+p\d+)?$")

Reader = Callable[[Span, UnreadableHandler], Iterator[Document]]


@dataclass(frozen=True)
class Format:
    """Format of source files."""

    reader: Reader
    suffixes: frozenset[str]
    named_suffixes: frozenset[str] = frozenset()
    """Ambiguous suffixes. They count for files that are named or matched by a glob, but not for the files of a
    folder."""
    can_be_cut: Callable[[Source], bool] = lambda source: False
    """Whether an uncompressed file can be divided into several spans."""
    find_files: Callable[[Source, Listing], Iterator[InputFile]] | None = None
    """Return the files of a source that this format reads. None: all files whose suffix is of the format."""
    attached: Mapping[str, str] = field(default_factory=dict)
    """Lower-case suffix of files that a document may name as its note `ATTACHED` -> suffix in a shard."""
    remedy: str = ""
    """Remedy in the error about a source of text that has only files of this format."""


def _has_records(source: Source) -> bool:
    return source.documents != "file" and source.aligned is None


def _accepts_all(source: Source) -> bool:
    return True


TEXT_FORMATS: dict[str, Format] = {
    "text": Format(read_text, frozenset({".txt", ".text", ".rst"}), can_be_cut=_has_records),
    "markdown": Format(read_text, frozenset({".md", ".markdown"}), can_be_cut=_has_records),
    "code": Format(read_code, CODE, can_be_cut=_has_records),
    "json-lines": Format(read_json_lines, frozenset({".jsonl", ".ndjson"}), frozenset({".json"}), _accepts_all),
    "csv": Format(read_csv, frozenset({".csv", ".tsv"})),
    "html": Format(read_html, frozenset({".html", ".htm", ".xhtml"})),
    "parquet": Format(read_parquet, frozenset({".parquet"}), can_be_cut=_accepts_all),
    "arrow": Format(read_arrow, frozenset({".arrow", ".feather"}), can_be_cut=_accepts_all),
    "mds": Format(read_mds, frozenset({".mds"}), can_be_cut=_accepts_all),
    "warc": Format(read_warc, frozenset({".warc", ".wet"})),
    "wikipedia": Format(read_wikipedia, frozenset(), frozenset({".xml"})),
}
FORMATS: Registry[Format] = Registry(TEXT_FORMATS, lambda: chain(*map(dict.items, contributions("formats", "FORMATS"))))
"""Formats by name: formats of text, then formats of families."""
BY_SUFFIX = {suffix: name for name, row in TEXT_FORMATS.items() for suffix in row.suffixes}
BY_NAMED_SUFFIX = {suffix: name for name, row in TEXT_FORMATS.items() for suffix in row.named_suffixes}


def _format_name(file_name: str, *, named: bool) -> str | None:
    """Return the format that the name of a source file implies, regardless of a compression suffix; None if unknown."""
    inner = without_compression(file_name).lower()
    if DUMP.search(inner):
        return "wikipedia"
    suffix = PurePosixPath(inner).suffix
    return BY_SUFFIX.get(suffix) or (BY_NAMED_SUFFIX.get(suffix) if named else None)


def skip_reason(file_name: str, source: Source, kind: Literal["file", "folder", "glob"]) -> str | None:
    """Return the reason why a file of a source is skipped, or None if it is read. A file that is named explicitly is
    always read."""
    if has_unsupported_compression(file_name):
        return "unsupported compression"
    if kind == "file" or (kind == "glob" and source.format is not None):
        return None
    implied = _format_name(file_name, named=kind == "glob" or source.format is not None)
    return None if implied is not None and source.format in (None, implied) else "unknown format"


def format_of(file: InputFile) -> str:
    """Return the format of a source file. A named file with an unknown suffix is read as text."""
    return file.source.format or _format_name(file.name, named=True) or "text"


def can_be_cut(file: InputFile) -> bool:
    """Whether documents of a source file can be read from its middle."""
    if archive_kind(file.name):
        return False
    return compression_of(file.name) is None and FORMATS[format_of(file)].can_be_cut(file.source)
