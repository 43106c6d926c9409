"""Parquet: the text is in one column. Only the required columns are read, one batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from data_pipeline.document import Document, is_document_error
from data_pipeline.sources.compression import compression_of
from data_pipeline.sources.content import EMPTY, open_file
from data_pipeline.sources.encodings import Encoding
from data_pipeline.sources.fields import refuse_duplicate_columns, select_notes, text_and_notes
from data_pipeline.sources.lines import line_too_long_error, max_line_bytes
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import Source, Span
from data_pipeline.sources.unreadable import (
    Unreadable,
    UnreadableHandler,
    UnreadableRecord,
    require_library,
    to_unreadable_record,
)
from megaptm.credentials import brief_message

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BATCH_BYTES = 8 << 20
"""Approximate bytes of a batch of rows of a Parquet file."""
BATCH_ROWS = 4096


def read_parquet(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read Parquet: yield the documents of the row groups whose first byte is in the span."""
    with require_library("pyarrow"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

    if compression_of(span.file.name):
        raise Unreadable("wrong compression", "is Parquet inside another compression", "decompress it")
    with open_file(span.file) as stream:
        if not stream.read(1):
            raise EMPTY
        try:
            # Without pre-buffering, pages are read on demand: a row group may be larger than memory.
            table = ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)
        except (ArrowException, OSError) as error:
            problem = f"is not readable Parquet ({_error_message(error)})"
            raise Unreadable("not Parquet", problem, "write it again") from None
        yield from _read_documents(table, span, handler)


def _read_documents(table: ParquetFile, span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    source, name = span.file.source, span.file.name
    encoding = Encoding(source.encoding)
    for row, record in _read_rows(table, span, handler):
        try:
            if sum(len(value) for value in record.values() if isinstance(value, bytes)) > max_line_bytes(source):
                raise line_too_long_error(source)
            decoded = {field: _to_json_value(value, encoding) for field, value in record.items()}
            text, part_notes = text_and_notes(decoded, source)
        except Exception as error:
            handler.handle_record(f"{name}@{row}", f"row {row:,}", to_unreadable_record(error))
            continue
        yield from to_documents(text, f"{name}@{row}", select_notes(decoded, source, {**encoding.notes, **part_notes}))


def _read_rows(table: ParquetFile, span: Span, handler: UnreadableHandler) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield row index in the file (from 0) and the required columns. The damaged remainder of a row group counts
    once."""
    source, next_row = span.file.source, 0
    columns = _required_columns(table, source)
    for group_index in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(group_index)
        row, next_row = next_row, next_row + group.num_rows
        if not span.start <= _first_byte(group) < span.end:
            continue
        try:
            for batch in table.iter_batches(
                _batch_rows(group, columns), row_groups=[group_index], columns=columns, use_threads=False
            ):
                for values in zip(*(_to_python(column) for column in batch.columns), strict=True):
                    yield row, dict(zip(batch.schema.names, values, strict=True))
                    row += 1
        except Exception as error:  # a date outside of Python's range raises an exception that is not Arrow's
            damage = UnreadableRecord(
                "damaged", f"starts a damaged part ({_error_message(error)})", "write the file again"
            )
            handler.handle_record(f"{span.file.name}@{row}", f"row {row:,}", damage)


def _error_message(error: Exception) -> str:
    """Return the message of an Arrow error about the file. Re-raise an error of the disk or the server."""
    if not is_document_error(error):
        raise error
    return brief_message(error)


def _required_columns(table: ParquetFile, source: Source) -> list[str]:
    """Return the required columns that a Parquet file has; raise `Unreadable` if a text column is missing."""
    schema = table.schema_arrow
    refuse_duplicate_columns(schema.names, source)
    for text in source.fields:
        if text not in schema.names or not _is_text(schema.field(text).type):
            kinds = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:20])
            remedy = f"name the column with `{'parts' if source.parts else 'text'}`"
            raise Unreadable("no text column", f"has no text in a column `{text}`, but {kinds}", remedy)
    return [name for name in schema.names if name in source.fields or name in source.keep]


def _batch_rows(group: Any, columns: list[str]) -> int:
    """Return the number of rows that hold about BATCH_BYTES in these columns."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, size)))


def _first_byte(group: Any) -> int:
    column = group.column(0)
    return min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view)) or any(
        test(kind) for test in (types.is_binary, types.is_large_binary, types.is_binary_view)
    )


def _to_python(column: Any) -> list[Any]:
    """Convert an Arrow batch to Python values, with text as bytes, because Arrow does not guarantee valid UTF-8."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        column = column.cast(pyarrow.large_binary())
    return column.to_pylist()


def _to_json_value(value: Any, encoding: Encoding) -> Any:
    """Convert a value of a Parquet file to a type that JSON can represent."""
    if isinstance(value, bytes):
        return encoding.decode(value)[0]
    return value if value is None or isinstance(value, str | int | float | list | dict) else str(value)
