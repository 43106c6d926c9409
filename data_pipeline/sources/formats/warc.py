"""WARC and WET: the main content of HTML pages, and all of the text that a WET file has already extracted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, LeftOut, Unreadable, bad_record, needed
from data_pipeline.sources.compression import decompress
from data_pipeline.sources.formats.html import decode_page, page_too_long, text_of_page
from data_pipeline.sources.formats.warc_records import RawRecord, longest_record, raw_records
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Source, Span

WITH_CONTENT = ("response", "conversion", "resource")
HTML = ("text/html", "application/xhtml+xml")
ENCODINGS = {
    "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "br": "brotli", "zstd": "zstd"
}  # fmt: skip
"""Content codings (RFC 9110, section 8.4.1) -> decompressor."""


def read_warc(span: Span, bad: Bad) -> Iterator[Document]:
    """Yield documents named by the index of their record, because byte offsets depend on the compression."""
    for number, raw in enumerate(raw_records(span.file)):
        source = f"{span.file.name}@{number}"
        try:
            if isinstance(raw, BadRecord):
                raise raw
            record = _parse(raw)
            if record.rec_type not in WITH_CONTENT:
                continue
            text, notes = _text(record, raw, span.file.source)
        except LeftOut as why:
            bad.left_out(str(why), source)
        except Exception as error:
            bad.record(source, f"record {number:,}", bad_record(error))
        else:
            yield from documents_of(text, source, notes)


def _parse(raw: RawRecord) -> Any:
    """Parse a record with warcio, which returns headers and a stream of the body."""
    with needed("warcio"):
        from warcio.recordloader import ArcWarcRecordLoader

    return ArcWarcRecordLoader(arc2warc=False).parse_record_stream(io.BytesIO(raw.content), known_format="warc")


def _text(record: Any, raw: RawRecord, source: Source) -> tuple[str, dict[str, Any]]:
    """Return text and notes of a record; raises `LeftOut` and `BadRecord`."""
    headers = record.http_headers or record.rec_headers
    status = record.http_headers.get_statuscode() if record.http_headers else "200"
    if not status.startswith("2"):
        raise LeftOut("HTTP error page")
    kind, _, parameters = (headers.get_header("Content-Type") or "text/html").partition(";")
    kind = kind.strip().lower()
    if kind != "text/plain" and kind not in HTML:
        raise LeftOut("not text")
    text, notes = decode_page(_content(record, raw, longest_record(source)), parameters)
    if kind in HTML:
        text = text_of_page(text, source.html)
    if not text:
        raise LeftOut("no main content")
    url = record.rec_headers.get_header("WARC-Target-URI")
    return text, {**({"url": url} if url else {}), **notes}


def _content(record: Any, raw: RawRecord, longest: int) -> bytes:
    """Return the body without transfer and content encodings; raises `BadRecord`."""
    from warcio.bufferedreaders import ChunkedDataReader

    if not raw.whole:
        raise page_too_long(longest)
    headers, body = record.http_headers, record.raw_stream.read()
    if headers is None:
        return body
    if (headers.get_header("Transfer-Encoding") or "").lower() == "chunked":
        body = ChunkedDataReader(io.BytesIO(body)).read()
    for name in reversed((headers.get_header("Content-Encoding") or "").lower().split(",")):
        if kind := ENCODINGS.get(name.strip()):
            body = _unpacked(body, kind, longest)
    return body


def _unpacked(body: bytes, kind: str, longest: int) -> bytes:
    """Decompress a body. Many crawlers store it decompressed but keep the header; such a body is returned unchanged."""
    content = bytearray()
    try:
        for data in decompress(iter((body,)), kind):
            content += data
            if len(content) > longest:
                raise page_too_long(longest)
    except Unreadable as error:
        if not content and _is_plain(body):
            return body
        raise BadRecord(error.reason, error.what, error.remedy) from None
    return bytes(content)


def _is_plain(body: bytes) -> bool:
    """Whether a body is already plain text. Compressed data never start with `<`, nor are they UTF-8 without zero
    bytes."""
    if body.lstrip()[:1] == b"<":
        return True
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False
