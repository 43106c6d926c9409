"""WARC and WET: of pages the main content, of text that was extracted before all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, Unreadable, needed
from data_pipeline.sources.content import Stream, chunks
from data_pipeline.sources.formats.html import decode_page, text_of_page
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Span

LONGEST_PAGE = 64 << 20
"""Bytes. A page is held whole, and several times over while it is taken apart."""
WITH_CONTENT = ("response", "conversion", "resource")
HTML = ("text/html", "application/xhtml+xml")


class _LeftOut(Exception):  # noqa: N818
    """What archives hold beside text, which is no mistake."""


def read_warc(span: Span, bad: Bad) -> Iterator[Document]:
    """Documents are named by the number of their record, from 0: offsets depend on the compression."""
    for number, record in enumerate(_records(span)):
        if record.rec_type not in WITH_CONTENT:
            continue
        source = f"{span.file.name}@{number}"
        try:
            text, notes = _text(record, span.file.source.html)
        except _LeftOut as why:
            bad.left_out(str(why), source)
        except BadRecord as error:
            bad.record(source, f"record {number:,}", error)
        else:
            yield from documents_of(text, source, notes)


def _records(span: Span) -> Iterator[Any]:
    """Records in order; raises `Unreadable` where they end too early, which warcio lets pass."""
    with needed("warcio"):
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed

    stream, begun = Stream(chunks(span.file)), False
    try:
        for record in ArchiveIterator(stream):
            if record.length is None:
                raise _truncated()
            begun = True
            yield record
            _finish(record)
    except ArchiveLoadFailed as error:
        if not begun or _ends_well(stream):
            what = f"is not a WARC that can be read ({' '.join(str(error).split())})"
            raise Unreadable("not WARC", what, "remove it") from None
    if not _ends_well(stream):
        raise _truncated()


def _ends_well(stream: Stream) -> bool:
    """Every record ends with a blank line."""
    return stream.tail.endswith((b"\n\r\n", b"\n\n"))


def _finish(record: Any) -> None:
    """Pass over what is left of a record; raises `Unreadable` if that is less than was promised."""
    while record.raw_stream.read(1 << 20):
        pass
    if getattr(record.raw_stream, "limit", 0):
        raise _truncated()


def _truncated() -> Unreadable:
    return Unreadable("truncated", "ends in the middle of a record", "fetch it again")


def _text(record: Any, which: str) -> tuple[str, dict[str, Any]]:
    """Text and notes; raises `_LeftOut` and `BadRecord`."""
    headers = record.http_headers or record.rec_headers
    status = record.http_headers.get_statuscode() if record.http_headers else "200"
    if not status.startswith("2"):
        raise _LeftOut("HTTP error page")
    kind, _, parameters = (headers.get_header("Content-Type") or "text/html").partition(";")
    kind = kind.strip().lower()
    if kind != "text/plain" and kind not in HTML:
        raise _LeftOut("not text")
    text, notes = decode_page(_content(record), parameters)
    if kind in HTML:
        text = text_of_page(text, which)
    if not text:
        raise _LeftOut("no main content")
    url = record.rec_headers.get_header("WARC-Target-URI")
    return text, {**({"url": url} if url else {}), **notes}


def _content(record: Any) -> bytes:
    """The body, without the encodings of its transfer; raises `BadRecord`."""
    stream, held = record.content_stream(), bytearray()
    while data := stream.read(1 << 16):
        held += data
        if len(held) > LONGEST_PAGE:
            raise BadRecord("page too long", f"is longer than {LONGEST_PAGE >> 20} MiB", "leave it out")
    _finish(record)
    return bytes(held)
