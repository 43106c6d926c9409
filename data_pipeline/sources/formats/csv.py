"""CSV and TSV. The text of a row is in one column, which is named by the header line or by `Source.columns`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, Unreadable, bad_record
from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.encodings import Encoding, encoding_of_records
from data_pipeline.sources.fields import notes_of, refuse_twins, text_and_notes
from data_pipeline.sources.lines import Line, lines_of, longest_line, too_long
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import InputFile, Source, Span

# The csv module reads characters, but fields are decoded later, one by one. Until then latin-1 maps each byte to the
# character with the same code.
BYTES = "latin-1"


def read_csv(span: Span, bad: Bad) -> Iterator[Document]:
    source = span.file.source
    encoding = encoding_of_records(span.file)
    rows = _rows(span, encoding, bad)
    header = [*source.columns] or [encoding.decode(name.encode(BYTES))[0] for name in next(rows, (0, []))[1]]
    refuse_twins(header, source)
    wanted = [name for name in (*source.fields, *source.keep) if name in header]
    if lacking := [name for name in source.fields if name not in wanted]:
        what = f"has no column `{lacking[0]}` in its first line, but {', '.join(header[:20])}"
        key = "parts" if source.parts else "text"
        remedy = f"name the column with `{key}`, or, where the first line is text, all columns with `columns`"
        raise Unreadable("no text column", what, remedy)
    for offset, row in rows:
        try:
            if len(row) != len(header):
                what = f"begins a row of {len(row)} fields where {len(header)} are due"
                raise BadRecord("wrong number of fields", what, "correct it")
            read = {name: encoding.decode(row[header.index(name)].encode(BYTES)) for name in wanted}
            record = {name: value for name, (value, _) in read.items()}
            text, places = text_and_notes(record, source)
            notes = {**read[source.fields[0]][1], **places}
        except Exception as error:
            bad.line(offset, bad_record(error), ",".join(row).encode(BYTES))
            continue
        yield from documents_of(text, f"{span.file.name}@{offset}", notes_of(record, source, notes))


def _rows(span: Span, encoding: Encoding, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, with the offsets of their first bytes."""
    csv.field_size_limit(sys.maxsize)  # `_Lines` limits the size of the whole row
    lines = _Lines(lines_of(span, encoding), span.file.source)
    # Strict, because a stray quote would otherwise silently merge the following rows into its field.
    rows = csv.reader(lines, delimiter=_delimiter(span.file), strict=True)
    while True:
        lines.first, lines.size = None, 0
        try:
            row = next(rows, None)
        except BadRecord as error:
            bad.line(lines.first or 0, error)
        except csv.Error as error:
            bad.line(lines.first or 0, BadRecord("not CSV", f"begins what is not valid CSV ({error})", "correct it"))
        else:
            if row is None:
                return
            if row:
                yield lines.first or 0, row


class _Lines:
    """Iterator of lines with newlines, for csv.reader; can continue after an error. `first` is the offset of the
    row."""

    def __init__(self, lines: Iterator[Line], source: Source):
        self.source = source
        self.lines = lines
        self.first: int | None = None
        self.size = 0
        """Bytes of the current row read so far."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        offset, line = next(self.lines)
        if self.first is None:
            self.first = offset
        if line is None or (size := self.size + len(line)) > longest_line(self.source):
            raise too_long(self.source)
        self.size = size
        return line.decode(BYTES) + "\n"


def _delimiter(file: InputFile) -> str:
    return file.source.delimiter or ("\t" if without_compression(file.name).lower().endswith(".tsv") else ",")
