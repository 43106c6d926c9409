"""Plain text, Markdown and source code. A document is a file, a line, or a paragraph between blank lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from data_pipeline.annotate.parts import text_and_parts
from data_pipeline.document import Document
from data_pipeline.sources.content import read_chunks
from data_pipeline.sources.encodings import decode_chunks, detect_file_encoding, detect_record_encoding
from data_pipeline.sources.lines import Line, line_too_long_error, read_lines
from data_pipeline.sources.paragraphs import read_paragraphs
from data_pipeline.sources.pieces import MAX_DOCUMENT_CHARACTERS, stream_to_documents, to_documents
from data_pipeline.sources.source import InputFile, Source, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord


def read_text(span: Span, handler: UnreadableHandler, form: str = "prose") -> Iterator[Document]:
    if span.file.aligned is not None:
        return _read_aligned(span.file, span.file.aligned, handler, form)
    read = {"file": _read_file, "line": _read_lines, "blank-line": _read_paragraphs}[span.file.source.documents]
    return read(span, handler, form)


def read_code(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    return read_text(span, handler, "code")


def _read_file(span: Span, handler: UnreadableHandler, form: str) -> Iterator[Document]:
    encoding = detect_file_encoding(span.file)
    content = decode_chunks(read_chunks(span.file), encoding.codec)
    return stream_to_documents(content, span.file.name, encoding.notes, form)


def _read_lines(span: Span, handler: UnreadableHandler, form: str) -> Iterator[Document]:
    encoding, name = detect_record_encoding(span.file), span.file.name
    for offset, line in read_lines(span, encoding):
        try:
            text, notes = encoding.decode(_line_content(line, span.file.source))
        except UnreadableRecord as error:
            handler.handle_line(offset, error, line or b"")
            continue
        if len(text) > MAX_DOCUMENT_CHARACTERS:
            yield from to_documents(text, f"{name}@{offset}", notes, form)
        elif text and not text.isspace():
            yield Document(text, f"{name}@{offset}", form, notes)


def _read_aligned(first: InputFile, second: InputFile, handler: UnreadableHandler, form: str) -> Iterator[Document]:
    """Yield a document per pair of aligned lines, except where both lines are blank."""
    encodings = [detect_record_encoding(file) for file in (first, second)]
    first_lines, second_lines = (
        read_lines(Span(file), encoding) for file, encoding in zip((first, second), encodings, strict=True)
    )
    for (offset, first_line), (_, second_line) in _pair_lines(first_lines, second_lines, second.shown_path):
        try:
            (text, notes), (translation, _) = (
                encoding.decode(_line_content(line, first.source))
                for encoding, line in zip(encodings, (first_line, second_line), strict=True)
            )
        except UnreadableRecord as error:
            handler.handle_line(offset, error, first_line or b"")
            continue
        if text.strip() or translation.strip():
            joined, part_notes = text_and_parts(first.source.with_prefix((text, translation)))
            yield from to_documents(joined, f"{first.name}@{offset}", {**notes, **part_notes}, form)


def _pair_lines(first: Iterator[Line], second: Iterator[Line], second_path: str) -> Iterator[tuple[Line, Line]]:
    """Yield pairs of lines; raise `Unreadable` if one file has more lines than the other."""
    for index, (first_line, second_line) in enumerate(zip_longest(first, second)):
        if first_line is None or second_line is None:
            comparison = "fewer" if first_line is None else "more"
            problem = f"has {comparison} lines than {second_path}: line {index + 1:,} has no counterpart"
            raise Unreadable("not aligned", problem, "use files with the same number of lines")
        yield first_line, second_line


def _read_paragraphs(span: Span, handler: UnreadableHandler, form: str) -> Iterator[Document]:
    encoding = detect_record_encoding(span.file)
    for offset, pieces in read_paragraphs(span, encoding):
        blocks = _split_into_blocks(pieces, span.file.source)
        try:
            text, notes = encoding.decode(next(blocks))
            remaining = (encoding.decode(block)[0] for block in blocks)
            yield from stream_to_documents(chain((text,), remaining), f"{span.file.name}@{offset}", notes, form)
        except UnreadableRecord as error:
            handler.handle_line(offset, error)


def _split_into_blocks(pieces: Iterator[bytes | None], source: Source) -> Iterator[bytearray]:
    """Yield a paragraph in blocks of complete lines, about MAX_DOCUMENT_CHARACTERS bytes each. Blocks do not depend on
    the read chunks."""
    held = bytearray()
    for piece in pieces:
        if piece is None:
            raise line_too_long_error(source)
        held += piece
        while stop := held.find(b"\n", MAX_DOCUMENT_CHARACTERS) + 1:
            yield held[:stop].replace(b"\r\n", b"\n")
            held = held[stop:]
    yield held.rstrip(b"\r\n").replace(b"\r\n", b"\n")


def _line_content(line: bytes | bytearray | None, source: Source) -> bytes | bytearray:
    """Return a line of text without a trailing carriage return; raises `UnreadableRecord`."""
    if line is None:
        raise line_too_long_error(source)
    return line.removesuffix(b"\r")
