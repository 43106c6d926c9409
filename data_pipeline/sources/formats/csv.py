"""CSV and TSV. The text of a row is in one column, which is named by the header line or by `Source.columns`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import Literal

from data_pipeline.document import Document
from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.encodings import Encoding, detect_record_encoding
from data_pipeline.sources.fields import refuse_duplicate_columns, select_notes, text_and_notes
from data_pipeline.sources.lines import Line, line_too_long_error, max_line_bytes, read_lines
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import InputFile, Source, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord, to_unreadable_record

# The csv module reads characters, but fields are decoded later, one by one. Until then latin-1 maps each byte to the
# character with the same code.
BYTE_CODEC = "latin-1"


def read_csv(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    source = span.file.source
    encoding = detect_record_encoding(span.file)
    rows = _read_rows(span, encoding, handler)
    header = [*source.columns] or [encoding.decode(name.encode(BYTE_CODEC))[0] for name in next(rows, (0, []))[1]]
    refuse_duplicate_columns(header, source)
    columns = [name for name in (*source.fields, *source.keep) if name in header]
    if missing := [name for name in source.fields if name not in columns]:
        problem = f"has no column `{missing[0]}` in its first line, but {', '.join(header[:20])}"
        key = "parts" if source.parts else "text"
        remedy = f"name the column with `{key}`, or, if the first line is text, all columns with `columns`"
        raise Unreadable("no text column", problem, remedy)
    for offset, row in rows:
        try:
            if len(row) != len(header):
                problem = f"starts a row of {len(row)} fields, but {len(header)} are expected"
                raise UnreadableRecord("wrong number of fields", problem, "correct it")
            decoded = {name: encoding.decode(row[header.index(name)].encode(BYTE_CODEC)) for name in columns}
            record = {name: value for name, (value, _) in decoded.items()}
            text, part_notes = text_and_notes(record, source)
            notes = {**decoded[source.fields[0]][1], **part_notes}
        except Exception as error:
            handler.handle_line(offset, to_unreadable_record(error), ",".join(row).encode(BYTE_CODEC))
            continue
        yield from to_documents(text, f"{span.file.name}@{offset}", select_notes(record, source, notes))


def _read_rows(span: Span, encoding: Encoding, handler: UnreadableHandler) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not empty, with the offsets of their first bytes."""
    csv.field_size_limit(sys.maxsize)  # `_LineIterator` limits the size of the whole row
    lines = _LineIterator(read_lines(span, encoding), span.file.source)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if span.file.source.quotes else csv.QUOTE_NONE
    # Strict, because a stray quote would otherwise silently merge the following rows into its field.
    rows = csv.reader(lines, delimiter=_delimiter_of_file(span.file), quoting=quoting, strict=True)
    while True:
        lines.first, lines.size, lines.count = None, 0, 0
        try:
            row = next(rows, None)
        except (UnreadableRecord, csv.Error) as error:
            handler.handle_line(lines.first or 0, _row_error(error, lines))
        else:
            if row is None:
                return
            if row:
                yield lines.first or 0, row


def _row_error(error: UnreadableRecord | csv.Error, lines: _LineIterator) -> UnreadableRecord:
    """Return the error of a row, with the number of lines that an unclosed quotation mark hides."""
    if isinstance(error, csv.Error):
        error = UnreadableRecord("not CSV", f"starts invalid CSV ({error})", "correct it")
    elif lines.count < 2:
        return error
    lost = f"; lines lost after it: {lines.count - 1:,}" if lines.count > 1 else ""
    quotes = ", or set `quotes: false` if quotation marks are part of the text" if lines.source.quotes else ""
    return UnreadableRecord(error.reason, error.problem + lost, error.remedy + quotes)


class _LineIterator:
    """Iterator over the lines of a CSV file with newlines, for csv.reader; it can continue after an error. `first` is
    the offset of the row."""

    def __init__(self, lines: Iterator[Line], source: Source):
        self.source = source
        self.lines = lines
        self.first: int | None = None
        self.size = 0
        """Bytes of the current row read so far."""
        self.count = 0
        """Lines of the current row read so far."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        offset, line = next(self.lines)
        self.count += 1
        if self.first is None:
            self.first = offset
        if line is None or (size := self.size + len(line)) > max_line_bytes(self.source):
            raise line_too_long_error(self.source)
        self.size = size
        return line.decode(BYTE_CODEC) + "\n"


def _delimiter_of_file(file: InputFile) -> str:
    return file.source.delimiter or ("\t" if without_compression(file.name).lower().endswith(".tsv") else ",")
