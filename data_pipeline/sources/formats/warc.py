"""WARC and WET: the main content of HTML pages, and all of the text that a WET file has already extracted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.compression import decompress
from data_pipeline.sources.formats.html import decode_page, page_too_long_error, text_of_page
from data_pipeline.sources.formats.warc_records import RawRecord, max_record_bytes, read_raw_records
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import Source, Span
from data_pipeline.sources.unreadable import (
    NotTextError,
    Unreadable,
    UnreadableHandler,
    UnreadableRecord,
    require_library,
    to_unreadable_record,
)

CONTENT_TYPES = ("response", "conversion", "resource")
HTML_TYPES = ("text/html", "application/xhtml+xml")
ENCODINGS = {
    "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "br": "brotli", "zstd": "zstd"
}  # fmt: skip
"""Content codings (RFC 9110, section 8.4.1) -> decompressor."""


def read_warc(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read WARC: yield documents named by the index of their record, because byte offsets depend on the compression."""
    for index, raw in enumerate(read_raw_records(span.file)):
        source = f"{span.file.name}@{index}"
        try:
            if isinstance(raw, UnreadableRecord):
                raise raw
            record = _parse_record(raw)
            if record.rec_type not in CONTENT_TYPES:
                continue
            text, notes = _record_text(record, raw, span.file.source)
        except NotTextError as skipped:
            handler.count_skipped(str(skipped), source)
        except Exception as error:
            handler.handle_record(source, f"record {index:,}", to_unreadable_record(error))
        else:
            yield from to_documents(text, source, notes)


def _parse_record(raw: RawRecord) -> Any:
    """Parse a record with warcio, which returns headers and a stream of the body."""
    with require_library("warcio"):
        from warcio.recordloader import ArcWarcRecordLoader

    return ArcWarcRecordLoader(arc2warc=False).parse_record_stream(io.BytesIO(raw.content), known_format="warc")


def _record_text(record: Any, raw: RawRecord, source: Source) -> tuple[str, dict[str, Any]]:
    """Return text and notes of a WARC record; raises `NotTextError` and `UnreadableRecord`."""
    headers = record.http_headers or record.rec_headers
    status = record.http_headers.get_statuscode() if record.http_headers else "200"
    if not status.startswith("2"):
        raise NotTextError("HTTP error page")
    kind, _, parameters = (headers.get_header("Content-Type") or "text/html").partition(";")
    kind = kind.strip().lower()
    if kind != "text/plain" and kind not in HTML_TYPES:
        raise NotTextError("not text")
    text, notes = decode_page(_decoded_body(record, raw, max_record_bytes(source)), parameters)
    if kind in HTML_TYPES:
        text = text_of_page(text, source.html)
    if not text:
        raise NotTextError("no main content")
    url = record.rec_headers.get_header("WARC-Target-URI")
    return text, {**({"url": url} if url else {}), **notes}


def _decoded_body(record: Any, raw: RawRecord, longest: int) -> bytes:
    """Return the body of a WARC record without transfer and content encodings; raises `UnreadableRecord`."""
    from warcio.bufferedreaders import ChunkedDataReader

    if not raw.is_complete:
        raise page_too_long_error(longest)
    headers, body = record.http_headers, record.raw_stream.read()
    if headers is None:
        return body
    if (headers.get_header("Transfer-Encoding") or "").lower() == "chunked":
        body = ChunkedDataReader(io.BytesIO(body)).read()
    for name in reversed((headers.get_header("Content-Encoding") or "").lower().split(",")):
        if kind := ENCODINGS.get(name.strip()):
            body = _decompress_body(body, kind, longest)
    return body


def _decompress_body(body: bytes, kind: str, longest: int) -> bytes:
    """Decompress the body of a WARC record. Many crawlers store it decompressed but keep the header; such a body is
    returned unchanged."""
    content = bytearray()
    try:
        for data in decompress(iter((body,)), kind):
            content += data
            if len(content) > longest:
                raise page_too_long_error(longest)
    except Unreadable as error:
        if not content and _is_plain(body):
            return body
        raise UnreadableRecord(error.reason, error.problem, error.remedy) from None
    return bytes(content)


def _is_plain(body: bytes) -> bool:
    """Whether the body of a WARC record is already plain text. Compressed data never start with `<`, nor are they UTF-8
    without zero bytes."""
    if body.lstrip()[:1] == b"<":
        return True
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False
