"""JSON lines: an object a line, its text in one of its fields."""

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
    """An object a line; of a file that holds arrays, or objects over many lines, an object each."""
    encoding = encoding_of_records(span.file)
    if has_values(span.file, encoding):
        if not span.start:  # which has all of it
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
    """Line -> record, and notes. The function raises `BadRecord`."""
    with needed("orjson"):
        from orjson import loads  # more than twice as fast as json

    def parse(line: bytes | bytearray | None) -> Parsed:
        if line is None:
            raise too_long(source)
        if encoding.is_tried_as_utf8:
            try:
                return loads(line), encoding.notes
            except ValueError:
                pass  # json knows numbers that orjson does not, such as NaN, and the encoding may be another
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
    """The same; raises `BadRecord` if what is wanted of it is no text."""
    names = (*source.fields, source.messages, *source.keep)
    wanted = {name: record.get(name) for name in names} if isinstance(record, dict) else record
    try:
        json.dumps(wanted, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRecord("not UTF-8", "holds half a surrogate pair, which no text has", "correct it") from None
    return record
