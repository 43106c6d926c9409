"""Parquet: the text is in one column. Only the required columns are read, one batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from data_pipeline.document import Document
from data_pipeline.sources.compression import compression_of
from data_pipeline.sources.content import EMPTY, open_file
from data_pipeline.sources.formats.columns import Row, arrow_message, documents_of_rows, required_columns, to_python
from data_pipeline.sources.source import Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord, require_library

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
            problem = f"is not readable Parquet ({arrow_message(error)})"
            raise Unreadable("not Parquet", problem, "write it again") from None
        yield from documents_of_rows(_read_rows(table, span, handler), span, handler)


def _read_rows(table: ParquetFile, span: Span, handler: UnreadableHandler) -> Iterator[Row]:
    """Yield row index in the file (from 0) and the required columns. The damaged remainder of a row group counts
    once."""
    next_row = 0
    columns = required_columns(table.schema_arrow, span.file.source)
    for group_index in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(group_index)
        row, next_row = next_row, next_row + group.num_rows
        if not span.start <= _first_byte(group) < span.end:
            continue
        try:
            for batch in table.iter_batches(
                _batch_rows(group, columns), row_groups=[group_index], columns=columns, use_threads=False
            ):
                for values in zip(*(to_python(column) for column in batch.columns), strict=True):
                    yield row, dict(zip(batch.schema.names, values, strict=True))
                    row += 1
        except Exception as error:  # a date outside of Python's range raises an exception that is not Arrow's
            damage = UnreadableRecord(
                "damaged", f"starts a damaged part ({arrow_message(error)})", "write the file again"
            )
            handler.handle_record(f"{span.file.name}@{row}", f"row {row:,}", damage)


def _batch_rows(group: Any, columns: list[str]) -> int:
    """Return the number of rows that hold about BATCH_BYTES in these columns."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, size)))


def _first_byte(group: Any) -> int:
    column = group.column(0)
    return min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
