"""JSON lines: one object per line, with the text in one of its fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.encodings import Encoding, detect_record_encoding
from data_pipeline.sources.fields import conversation_of, select_notes, text_and_notes
from data_pipeline.sources.json_values import (
    has_values,
    parse_integer,
    read_values,
    refuse_deep_value,
    too_deep_error,
)
from data_pipeline.sources.lines import line_too_long_error, read_lines
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import Source, Span
from data_pipeline.sources.unreadable import UnreadableHandler, UnreadableRecord, require_library, to_unreadable_record

Parsed = tuple[Any, Mapping[str, Any]]
MAX_EXACT_FLOAT = 2.0**63
"""Value from which a float of orjson may be an integer of the file, which has more than 64 bits and was rounded."""


def read_json_lines(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read JSON lines: yield a document per line. A file of arrays or of multi-line objects yields a document per
    object."""
    encoding = detect_record_encoding(span.file)
    if has_values(span.file, encoding):
        if not span.start:  # the first span contains the whole file
            yield from _read_values(span, encoding, handler)
        return
    source, name = span.file.source, span.file.name
    parse = _make_parser(encoding, source)
    for offset, line in read_lines(span, encoding):
        if line is not None and (not line or line.isspace()):
            continue
        try:
            record, notes = parse(line)
            text, offsets = _text_and_offsets(record, source)
            notes = select_notes(record, source, {**notes, **offsets})
        except Exception as error:
            handler.handle_line(offset, to_unreadable_record(error), line or b"")
            continue
        yield from to_documents(text, f"{name}@{offset}", notes)


def _read_values(span: Span, encoding: Encoding, handler: UnreadableHandler) -> Iterator[Document]:
    source, name = span.file.source, span.file.name
    for offset, value in read_values(span.file):
        try:
            if isinstance(value, UnreadableRecord):
                raise value
            record = _require_valid(value, source)
            text, offsets = _text_and_offsets(record, source)
            notes = select_notes(record, source, {**encoding.notes, **offsets})
        except Exception as error:
            handler.handle_line(offset, to_unreadable_record(error))
            continue
        yield from to_documents(text, f"{name}@{offset}", notes)


def _text_and_offsets(record: Any, source: Source) -> tuple[str, dict[str, Any]]:
    return text_and_notes(record, source) if source.messages is None else conversation_of(record, source.messages)


def _make_parser(encoding: Encoding, source: Source) -> Callable[[bytes | bytearray | None], Parsed]:
    """Return a parser of JSON lines: line -> record and notes. The parser raises `UnreadableRecord`."""
    with require_library("orjson"):
        from orjson import loads  # more than twice as fast as json

    def parse(line: bytes | bytearray | None) -> Parsed:
        if line is None:
            raise line_too_long_error(source)
        if encoding.is_tried_as_utf8:
            try:
                record = loads(line)
                if not (source.keep and isinstance(record, dict) and _has_large_float(map(record.get, source.keep))):
                    return record, encoding.notes
            except ValueError:
                pass  # json accepts numbers that orjson rejects, such as NaN, and the encoding may not be UTF-8
        return _parse_slowly(line, encoding, source)

    return parse


def _has_large_float(values: Iterable[Any]) -> bool:
    remaining = [*values]
    while remaining:
        value = remaining.pop()
        if type(value) is float and abs(value) >= MAX_EXACT_FLOAT:
            return True
        if isinstance(value, dict | list):
            remaining += value.values() if isinstance(value, dict) else value
    return False


def _parse_slowly(line: bytes | bytearray, encoding: Encoding, source: Source) -> Parsed:
    text, notes = encoding.decode(line)
    try:
        # A byte order mark may be inside a file that was joined from several.
        record = json.loads(text.removeprefix("\ufeff"), parse_int=parse_integer)
    except RecursionError:
        raise too_deep_error() from None
    except ValueError:
        raise UnreadableRecord("not JSON", "is not valid JSON", "correct it") from None
    return _require_valid(record, source), notes


def _require_valid(record: Any, source: Source) -> Any:
    """Return a JSON record, or raise `UnreadableRecord` if it is nested too deeply or a requested field cannot be
    encoded as UTF-8."""
    refuse_deep_value(record)
    names = (*source.fields, source.messages, *source.keep)
    requested = {name: record.get(name) for name in names} if isinstance(record, dict) else record
    try:
        json.dumps(requested, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnreadableRecord(
            "not UTF-8", "contains half of a surrogate pair, which is not valid text", "correct it"
        ) from None
    return record
