"""JSON lines: one object per line, with the text in one of its fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, bad_record, needed
from data_pipeline.sources.encodings import Encoding, encoding_of_records
from data_pipeline.sources.fields import conversation_of, notes_of, text_and_notes
from data_pipeline.sources.json_values import has_values, too_deep, values_of
from data_pipeline.sources.lines import lines_of, too_long
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Source, Span

Parsed = tuple[Any, Mapping[str, Any]]


def read_json_lines(span: Span, bad: Bad) -> Iterator[Document]:
    """Yield a document per line. A file of arrays or of multi-line objects yields a document per object."""
    encoding = encoding_of_records(span.file)
    if has_values(span.file, encoding):
        if not span.start:  # the first span contains the whole file
            yield from _read_values(span, encoding, bad)
        return
    source, name = span.file.source, span.file.name
    parse = _parser(encoding, source)
    for offset, line in lines_of(span, encoding):
        if line is not None and (not line or line.isspace()):
            continue
        try:
            record, notes = parse(line)
            text, places = _text_and_places(record, source)
        except Exception as error:
            bad.line(offset, bad_record(error), line or b"")
            continue
        yield from documents_of(text, f"{name}@{offset}", notes_of(record, source, {**notes, **places}))


def _read_values(span: Span, encoding: Encoding, bad: Bad) -> Iterator[Document]:
    source, name = span.file.source, span.file.name
    for offset, value in values_of(span.file):
        try:
            if isinstance(value, BadRecord):
                raise value
            record = _checked(value, source)
            text, places = _text_and_places(record, source)
        except Exception as error:
            bad.line(offset, bad_record(error))
            continue
        yield from documents_of(text, f"{name}@{offset}", notes_of(record, source, {**encoding.notes, **places}))


def _text_and_places(record: Any, source: Source) -> tuple[str, dict[str, Any]]:
    return text_and_notes(record, source) if source.messages is None else conversation_of(record, source.messages)


def _parser(encoding: Encoding, source: Source) -> Callable[[bytes | bytearray | None], Parsed]:
    """Return a function: line -> record and notes. The function raises `BadRecord`."""
    with needed("orjson"):
        from orjson import loads  # more than twice as fast as json

    def parse(line: bytes | bytearray | None) -> Parsed:
        if line is None:
            raise too_long(source)
        if encoding.is_tried_as_utf8:
            try:
                return loads(line), encoding.notes
            except ValueError:
                pass  # json accepts numbers that orjson rejects, such as NaN, and the encoding may not be UTF-8
        return _parse_slowly(line, encoding, source)

    return parse


def _parse_slowly(line: bytes | bytearray, encoding: Encoding, source: Source) -> Parsed:
    text, notes = encoding.decode(line)
    try:
        record = json.loads(text)
    except RecursionError:
        raise too_deep() from None
    except json.JSONDecodeError:
        raise BadRecord("not JSON", "is not valid JSON", "correct it") from None
    return _checked(record, source), notes


def _checked(record: Any, source: Source) -> Any:
    """Return the record, or raise `BadRecord` if a requested field cannot be encoded as UTF-8."""
    names = (*source.fields, source.messages, *source.keep)
    wanted = {name: record.get(name) for name in names} if isinstance(record, dict) else record
    try:
        json.dumps(wanted, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRecord("not UTF-8", "holds half a surrogate pair, which no text has", "correct it") from None
    return record
