"""Rows of formats with named columns: Parquet, Arrow, MDS. Only the columns that a source names are converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from data_pipeline.document import Document, is_document_error
from data_pipeline.sources.encodings import Encoding
from data_pipeline.sources.fields import refuse_duplicate_columns, select_notes, text_and_notes
from data_pipeline.sources.lines import line_too_long_error, max_line_bytes
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import Source, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, to_unreadable_record
from megaptm.credentials import brief_message

Row = tuple[int, dict[str, Any]]
"""Row of a file: its index, from 0, and column -> value. Text is bytes."""
PLAIN_TYPES = {str, int, float, bool, type(None)}
"""Types of values that JSON can represent as they are."""


def documents_of_rows(rows: Iterable[Row], span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Yield the document of each row of a source file. Rows without text are counted."""
    source, name = span.file.source, span.file.name
    encoding = Encoding(source.encoding)
    for row, record in rows:
        try:
            if sum(len(value) for value in record.values() if isinstance(value, bytes)) > max_line_bytes(source):
                raise line_too_long_error(source)
            guessed: dict[str, Any] = {}
            decoded = {
                field: _to_json_value(value, encoding, guessed if field in source.fields else {})
                for field, value in record.items()
            }
            text, part_notes = text_and_notes(decoded, source)
            notes = select_notes(decoded, source, {**guessed, **part_notes})
        except Exception as error:
            handler.handle_record(f"{name}@{row}", f"row {row:,}", to_unreadable_record(error))
            continue
        yield from to_documents(text, f"{name}@{row}", notes)


def required_columns(schema: Any, source: Source) -> list[str]:
    """Return the required columns of an Arrow schema; raise `Unreadable` if a text column is missing."""
    refuse_duplicate_columns(schema.names, source)
    for text in source.fields:
        if text not in schema.names or not is_text_type(schema.field(text).type):
            raise no_text_column(text, {field.name: str(field.type) for field in schema}, source)
    return [name for name in schema.names if name in source.fields or name in source.keep]


def no_text_column(text: str, kinds: dict[str, str], source: Source) -> Unreadable:
    """Return the error for a file whose columns (name -> type) do not include a text column `text`."""
    shown = ", ".join(f"{name} ({kind})" for name, kind in list(kinds.items())[:20])
    remedy = f"name the column with `{'parts' if source.parts else 'text'}`"
    return Unreadable("no text column", f"has no text in a column `{text}`, but {shown}", remedy)


def is_text_type(kind: Any) -> bool:
    """Whether an Arrow type is text or bytes, or a dictionary of them."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return is_text_type(kind.value_type)
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view)) or any(
        test(kind) for test in (types.is_binary, types.is_large_binary, types.is_binary_view)
    )


def column_to_python(column: Any) -> list[Any]:
    """Convert an Arrow batch to Python values, with text as bytes, because Arrow does not guarantee valid UTF-8."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):  # rows share their values: decoded, a long one may fill the memory
        values = column_to_python(column.dictionary)
        return [None if index is None else values[index] for index in column.indices.to_pylist()]
    if is_text_type(column.type):
        column = column.cast(pyarrow.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def arrow_message(error: Exception) -> str:
    """Return the message of an Arrow error about the file. Re-raise an error of the disk or the server."""
    if not is_document_error(error):
        raise error
    return brief_message(error)


def _to_json_value(value: Any, encoding: Encoding, notes: dict[str, Any]) -> Any:
    """Convert a value of a row to a type that JSON can represent. The notes of its encoding are added to `notes`."""
    if isinstance(value, bytes):
        text, notes_of_text = encoding.decode(value)
        notes.update(notes_of_text)
        return text
    if isinstance(value, list | tuple):
        if PLAIN_TYPES.issuperset(map(type, value)):  # such as thousands of token ids
            return list(value)
        return [_to_json_value(inner, encoding, notes) for inner in value]
    if isinstance(value, dict):
        return {str(name): _to_json_value(inner, encoding, notes) for name, inner in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)
