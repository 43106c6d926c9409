"""Parquet: the text is in one column. Only the required columns are read, one batch of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from data_pipeline.document import Document
from data_pipeline.sources.compression import compression_of
from data_pipeline.sources.content import EMPTY, open_file
from data_pipeline.sources.formats.columns import (
    Row,
    arrow_message,
    column_to_python,
    documents_of_rows,
    required_columns,
)
from data_pipeline.sources.source import Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord, require_library

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData, ParquetFile

BATCH_BYTES = 8 << 20
"""Approximate bytes of a batch of rows of a Parquet file."""
BATCH_ROWS = 4096
MAX_DICTIONARY_BYTES = 2 << 20
"""Maximum bytes of a column in a row group, besides 4 per row, to read it as a dictionary, whose values rows share.
Writers end a dictionary at about 1 MiB, so a larger column stores most values row by row."""


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
        # Without pre-buffering, pages are read on demand: a row group may be larger than memory.
        open_table = partial(
            ParquetFile, stream, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
        try:
            table = open_table()
            columns = required_columns(table.schema_arrow, span.file.source)
        except (ArrowException, OSError) as error:
            problem = f"is not readable Parquet ({arrow_message(error)})"
            raise Unreadable("not Parquet", problem, "write it again") from None
        open_group = partial(open_table, metadata=table.metadata)
        yield from documents_of_rows(_read_rows(table.metadata, open_group, columns, span, handler), span, handler)


def _read_rows(
    metadata: FileMetaData,
    open_group: Callable[..., ParquetFile],
    columns: list[str],
    span: Span,
    handler: UnreadableHandler,
) -> Iterator[Row]:
    """Yield row index in the file (from 0) and the required columns. The damaged remainder of a row group counts
    once."""
    next_row = 0
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        row, next_row = next_row, next_row + group.num_rows
        if not span.start <= _first_byte(group) < span.end:
            continue
        try:
            table = open_group(read_dictionary=_repeated_columns(group, columns))
            for batch in table.iter_batches(
                _batch_rows(group, columns), row_groups=[group_index], columns=columns, use_threads=False
            ):
                for values in zip(*(column_to_python(column) for column in batch.columns), strict=True):
                    yield row, dict(zip(batch.schema.names, values, strict=True))
                    row += 1
        except Exception as error:  # a date outside of Python's range raises an exception that is not Arrow's
            damage = UnreadableRecord(
                "damaged", f"starts a damaged part ({arrow_message(error)})", "write the file again"
            )
            handler.handle_record(f"{span.file.name}@{row}", f"row {row:,}", damage)


def _repeated_columns(group: Any, columns: list[str]) -> list[str]:
    """Return those columns of a row group whose values are in a dictionary page: few, perhaps long ones."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    return [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.path_in_schema in columns  # nested columns have other paths
        and chunk.physical_type == "BYTE_ARRAY"
        and chunk.has_dictionary_page
        and chunk.total_uncompressed_size <= MAX_DICTIONARY_BYTES + 4 * chunk.num_values
    ]


def _batch_rows(group: Any, columns: list[str]) -> int:
    """Return the number of rows that hold about BATCH_BYTES in these columns."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, size)))


def _first_byte(group: Any) -> int:
    column = group.column(0)
    first = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
    return max(0, first)  # a damaged offset must not be outside of all spans
