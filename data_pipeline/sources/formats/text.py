"""Plain text, Markdown and source code. A document is a file, a line, or a paragraph between blank lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from data_pipeline.annotate.parts import text_and_parts
from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, Unreadable
from data_pipeline.sources.content import chunks
from data_pipeline.sources.encodings import encoding_of_records, encoding_of_whole, texts
from data_pipeline.sources.lines import Line, lines_of, too_long
from data_pipeline.sources.paragraphs import paragraphs_of
from data_pipeline.sources.pieces import LONGEST, documents_of, documents_of_stream
from data_pipeline.sources.source import InputFile, Source, Span


def read_text(span: Span, bad: Bad, form: str = "prose") -> Iterator[Document]:
    if span.file.aligned is not None:
        return _read_aligned(span.file, span.file.aligned, bad, form)
    read = {"file": _read_file, "line": _read_lines, "blank-line": _read_paragraphs}[span.file.source.documents]
    return read(span, bad, form)


def read_code(span: Span, bad: Bad) -> Iterator[Document]:
    return read_text(span, bad, "code")


def _read_file(span: Span, bad: Bad, form: str) -> Iterator[Document]:
    encoding = encoding_of_whole(span.file)
    content = texts(chunks(span.file), encoding.codec)
    return documents_of_stream(content, span.file.name, encoding.notes, form)


def _read_lines(span: Span, bad: Bad, form: str) -> Iterator[Document]:
    encoding, name = encoding_of_records(span.file), span.file.name
    for offset, line in lines_of(span, encoding):
        try:
            text, notes = encoding.decode(_content(line, span.file.source))
        except BadRecord as error:
            bad.line(offset, error, line or b"")
            continue
        if len(text) > LONGEST:
            yield from documents_of(text, f"{name}@{offset}", notes, form)
        elif text and not text.isspace():
            yield Document(text, f"{name}@{offset}", form, notes)


def _read_aligned(first: InputFile, second: InputFile, bad: Bad, form: str) -> Iterator[Document]:
    """Yield a document per pair of aligned lines, except where both lines are blank."""
    encodings = [encoding_of_records(file) for file in (first, second)]
    ones, others = (lines_of(Span(file), encoding) for file, encoding in zip((first, second), encodings, strict=True))
    for (offset, one), (_, other) in _both(ones, others, second.place):
        try:
            (text, notes), (translation, _) = (
                encoding.decode(_content(line, first.source))
                for encoding, line in zip(encodings, (one, other), strict=True)
            )
        except BadRecord as error:
            bad.line(offset, error, one or b"")
            continue
        if text.strip() or translation.strip():
            whole, places = text_and_parts(first.source.with_prefix((text, translation)))
            yield from documents_of(whole, f"{first.name}@{offset}", {**notes, **places}, form)


def _both(first: Iterator[Line], second: Iterator[Line], place: str) -> Iterator[tuple[Line, Line]]:
    """Yield pairs of lines; raise `Unreadable` if one file has more lines than the other."""
    for number, (one, other) in enumerate(zip_longest(first, second)):
        if one is None or other is None:
            what = f"has {'fewer' if one is None else 'more'} lines than {place}: line {number + 1:,} has no partner"
            raise Unreadable("not aligned", what, "give files of as many lines, where each line has its partner")
        yield one, other


def _read_paragraphs(span: Span, bad: Bad, form: str) -> Iterator[Document]:
    encoding = encoding_of_records(span.file)
    for offset, pieces in paragraphs_of(span, encoding):
        blocks = _blocks(pieces, span.file.source)
        try:
            text, notes = encoding.decode(next(blocks))
            rest = (encoding.decode(block)[0] for block in blocks)
            yield from documents_of_stream(chain((text,), rest), f"{span.file.name}@{offset}", notes, form)
        except BadRecord as error:
            bad.line(offset, error)


def _blocks(pieces: Iterator[bytes | None], source: Source) -> Iterator[bytearray]:
    """Yield a paragraph in blocks of complete lines, about LONGEST bytes each. Blocks do not depend on the read
    chunks."""
    held = bytearray()
    for piece in pieces:
        if piece is None:
            raise too_long(source)
        held += piece
        while stop := held.find(b"\n", LONGEST) + 1:
            yield held[:stop].replace(b"\r\n", b"\n")
            held = held[stop:]
    yield held.rstrip(b"\r\n").replace(b"\r\n", b"\n")


def _content(line: bytes | bytearray | None, source: Source) -> bytes | bytearray:
    """Return the line without a trailing carriage return; raises `BadRecord`."""
    if line is None:
        raise too_long(source)
    return line.removesuffix(b"\r")
