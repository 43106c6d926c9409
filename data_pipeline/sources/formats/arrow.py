"""Arrow IPC, stream or file: Hugging Face `datasets` folders (`save_to_disk`, caches) and Feather. One record batch is
in memory at a time.

Headers of messages are read without their bodies, so that a span finds its record batches in a few reads. Format:
https://arrow.apache.org/docs/format/Columnar.html, encapsulated messages.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from data_pipeline.document import Document
from data_pipeline.sources.compression import compression_of
from data_pipeline.sources.content import EMPTY, expansion_error, open_file
from data_pipeline.sources.formats.columns import (
    Row,
    arrow_message,
    column_to_python,
    documents_of_rows,
    required_columns,
)
from data_pipeline.sources.source import InputFile, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord, require_library

FILE_MAGIC = b"ARROW1"
"""First bytes of the file format, which continues as a stream after 8 bytes."""
CONTINUATION = b"\xff\xff\xff\xff"
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
"""Types of message headers (`Message.fbs`)."""
MAX_METADATA = 64 << 20
"""Maximum bytes of a message's description, which is read into memory."""
END_OF_STREAM = CONTINUATION + bytes(4)


@dataclass(frozen=True)
class _Message:
    kind: int
    start: int
    stop: int
    rows: int
    """Number of rows of a record batch."""
    compressed: tuple[int, ...]
    """First byte of each compressed buffer in the message; a buffer starts with its size, int64."""
    dictionary: int
    """Number of the dictionary in the message, if it has one."""
    replaces: bool
    """Whether the dictionary replaces an earlier one with its number. Otherwise it extends it."""


def read_arrow(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read Arrow: yield the documents of the record batches whose first byte is in the span."""
    with require_library("pyarrow"):
        from pyarrow import ArrowException

    if compression_of(span.file.name):
        raise Unreadable("wrong compression", "is Arrow inside another compression", "decompress it")
    with open_file(span.file) as stream:
        if not stream.read(1):
            raise EMPTY
        try:
            messages = _messages(stream, span, handler)
            schema = next(messages)
            head = _read(stream, schema, span.file)
            columns = required_columns(_open(head).schema, span.file.source)
        except (ArrowException, OSError, StopIteration) as error:
            raise _not_arrow(arrow_message(error)) from None
        yield from documents_of_rows(_rows(stream, messages, head, columns, span, handler), span, handler)


def _not_arrow(problem: str) -> Unreadable:
    return Unreadable("not Arrow", f"is not readable Arrow ({problem})", "write it again")


def _rows(
    stream: BinaryIO,
    messages: Iterator[_Message],
    head: bytes,
    columns: list[str],
    span: Span,
    handler: UnreadableHandler,
) -> Iterator[Row]:
    """Yield row index in the file (from 0) and the required columns. A damaged record batch counts once."""
    first = 0
    dictionaries: dict[int, bytes] = {}
    """Messages of the dictionaries to which record batches may refer, by number. Some writers replace them often."""
    for message in messages:
        row, first = first, first + message.rows
        is_own = message.start >= span.start
        if message.kind != DICTIONARY and not (message.kind == RECORD_BATCH and is_own):
            continue
        try:
            content = _read(stream, message, span.file)
        except Unreadable as error:
            if is_own:
                of_batch = UnreadableRecord(error.reason, error.problem, error.remedy)
                handler.handle_record(f"{span.file.name}@{row}", f"row {row:,}", of_batch)
            if message.kind == DICTIONARY:  # later batches may refer to it
                return
            continue
        if message.kind == DICTIONARY:
            before = b"" if message.replaces else dictionaries.get(message.dictionary, b"")
            dictionaries[message.dictionary] = before + content
            continue
        try:
            [batch] = _open(b"".join([head, *dictionaries.values(), content, END_OF_STREAM]))
            # All before the first is converted: a column of nulls has no buffers that bound its number of rows.
            checked = [_checked(batch.column(name)) for name in columns]
            for values in zip(*map(column_to_python, checked), strict=True):
                yield row, dict(zip(columns, values, strict=True))
                row += 1
        except Exception as error:  # a date outside of Python's range raises an exception that is not Arrow's
            problem = f"starts a damaged part ({arrow_message(error)})"
            damage = UnreadableRecord("damaged", problem, "write the file again")
            handler.handle_record(f"{span.file.name}@{row}", f"row {row:,}", damage)


def _open(content: bytes) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(io.BytesIO(content))


def _read(stream: BinaryIO, message: _Message, file: InputFile) -> bytes:
    """Read a message; raise `Unreadable` if its buffers would fill the memory, because Arrow decompresses all."""
    stream.seek(message.start)
    content = stream.read(message.stop - message.start)
    sizes = (int.from_bytes(content[at : at + 8], "little", signed=True) for at in message.compressed)
    if sum(max(0, size) for size in sizes) > file.max_unpacked:  # size -1: the buffer is not compressed
        raise expansion_error(file)
    return content


def _checked(column: Any) -> Any:
    """Return a column whose offsets are inside its buffers. Text becomes bytes, since its UTF-8 is checked by row."""
    import pyarrow

    binary = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
    column = column.view(binary[column.type]) if column.type in binary else column
    column.validate(full=True)
    return column


def _messages(stream: BinaryIO, span: Span, handler: UnreadableHandler) -> Iterator[_Message]:
    """Yield the messages of a stream up to the end of the span: first its schema. A message that is not readable is
    counted by the span in which it starts."""
    size, start, rows = stream.seek(0, io.SEEK_END), 0, 0
    stream.seek(0)
    if stream.read(len(FILE_MAGIC)) == FILE_MAGIC:
        start = 8
    first = start
    while start < span.end and (message := _read_message(stream, start, size)) is not None:
        if isinstance(message, UnreadableRecord):
            if start == first:
                raise _not_arrow(f"its schema {message.problem}")
            if start >= span.start:
                problem = f"starts a part that {message.problem}"
                error = UnreadableRecord(message.reason, problem, message.remedy)
                handler.handle_record(f"{span.file.name}@{rows}", f"row {rows:,}", error)
            return
        yield message
        start, rows = message.stop, rows + message.rows


def _read_message(stream: BinaryIO, start: int, size: int) -> _Message | UnreadableRecord | None:
    """Read the description of the message at byte `start` of `size`. Return what is wrong if it is not readable, and
    None at the end of the stream."""
    stream.seek(start)
    head = stream.read(8)
    if not head or head == END_OF_STREAM:
        return None
    length = int.from_bytes(head[4:], "little")
    damaged = UnreadableRecord("damaged", "is damaged", "write the file again")
    if len(head) == 8 and not head.startswith(CONTINUATION):
        return damaged
    if MAX_METADATA < length <= size - start:
        problem = f"has more than {MAX_METADATA:,} bytes of metadata"
        return UnreadableRecord("too much metadata", problem, "write the file again with less")
    metadata = stream.read(length) if length <= MAX_METADATA else b""
    if len(head) == 8 and len(metadata) == length:
        try:
            message = _parse_message(metadata, start)
        except IndexError:
            return damaged
        if message.stop <= size:
            return message
    return UnreadableRecord("truncated", "is not complete", "download it again")


def _parse_message(metadata: bytes, start: int) -> _Message:
    """Parse the flatbuffer of a message that starts at byte `start`; raise `IndexError` if it is invalid."""
    table = _number(metadata, 0, 4)
    kind = _number(metadata, _field(metadata, table, 1), 1)
    header = _field(metadata, table, 2)
    body = _field(metadata, table, 3)
    size, rows, compressed, dictionary, replaces = 8 + len(metadata), 0, [], 0, False
    if kind in (DICTIONARY, RECORD_BATCH):
        batch = _reference(metadata, header)
        if kind == DICTIONARY:
            number, is_delta = _field(metadata, batch, 0), _field(metadata, batch, 2)
            dictionary = _number(metadata, number, 8) if number else 0
            replaces = not (is_delta and _number(metadata, is_delta, 1))
            batch = _reference(metadata, _field(metadata, batch, 1))
        length = _field(metadata, batch, 0)
        rows = _number(metadata, length, 8) if length and kind == RECORD_BATCH else 0
        if _field(metadata, batch, 3):  # compression
            buffers = _reference(metadata, _field(metadata, batch, 2))
            records = (buffers + 4 + 16 * index for index in range(_number(metadata, buffers, 4)))
            compressed = [size + _number(metadata, at, 8) for at in records if _number(metadata, at + 8, 8)]
    stop = start + size + (_number(metadata, body, 8) if body else 0)
    return _Message(kind, start, stop, rows, tuple(compressed), dictionary, replaces)


def _reference(data: bytes, at: int) -> int:
    """Return the position of the table or vector to which a field of a flatbuffer refers."""
    return at + _number(data, at, 4)


def _field(data: bytes, table: int, index: int) -> int:
    """Return the position of a field of a flatbuffer's table; 0 if it is absent."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    at = 4 + 2 * index
    offset = _number(data, vtable + at, 2) if at < _number(data, vtable, 2) else 0
    return table + offset if offset else 0


def _number(data: bytes, at: int, size: int) -> int:
    if not 0 <= at <= len(data) - size:
        raise IndexError(at)
    return int.from_bytes(data[at : at + size], "little")
