"""Plain text, Markdown, source code: a document is a file, a line, or what stands between blank lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord
from data_pipeline.sources.content import chunks
from data_pipeline.sources.encodings import encoding_of_records, encoding_of_whole, texts
from data_pipeline.sources.lines import Line, lines_of, paragraphs_of, too_long
from data_pipeline.sources.pieces import LONGEST, documents_of, documents_of_stream
from data_pipeline.sources.source import Span


def read_text(span: Span, bad: Bad, form: str = "prose") -> Iterator[Document]:
    read = {"file": _read_file, "line": _read_lines, "blank-line": _read_paragraphs}[span.file.source.documents]
    return read(span, bad, form)


def read_code(span: Span, bad: Bad) -> Iterator[Document]:
    return read_text(span, bad, "code")


def _read_file(span: Span, bad: Bad, form: str) -> Iterator[Document]:
    encoding = encoding_of_whole(span.file)
    content = texts(chunks(span.file), encoding.codec)
    return documents_of_stream(content, span.file.name, encoding.notes, form)


def _read_lines(span: Span, bad: Bad, form: str) -> Iterator[Document]:
    encoding = encoding_of_records(span.file)
    for offset, line in lines_of(span, encoding):
        try:
            text, notes = encoding.decode(_content((offset, line)))
        except BadRecord as error:
            bad.line(offset, error, line or b"")
            continue
        if text and not text.isspace():
            yield from documents_of(text, f"{span.file.name}@{offset}", notes, form)


def _read_paragraphs(span: Span, bad: Bad, form: str) -> Iterator[Document]:
    encoding = encoding_of_records(span.file)
    for offset, lines in paragraphs_of(span, encoding):
        blocks = _blocks(lines)
        try:
            text, notes = encoding.decode(next(blocks))
            rest = (encoding.decode(block)[0] for block in blocks)
            yield from documents_of_stream(chain((text,), rest), f"{span.file.name}@{offset}", notes, form)
        except BadRecord as error:
            bad.line(offset, error)


def _blocks(lines: Iterator[Line]) -> Iterator[bytes]:
    """Lines put together, in blocks of about LONGEST bytes."""
    held: list[bytes | bytearray] = []
    size = 0
    for line in lines:
        held.append(_content(line))
        size += len(held[-1])
        if size > LONGEST:
            yield b"\n".join((*held, b""))
            held, size = [], 0
    if held:
        yield b"\n".join(held)


def _content(line: Line) -> bytes | bytearray:
    """Without the carriage return that lines of some systems end in; raises `BadRecord`."""
    if line[1] is None:
        raise too_long()
    return line[1].removesuffix(b"\r")
