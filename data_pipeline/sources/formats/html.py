"""Pages to text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, Unreadable, needed
from data_pipeline.sources.content import chunks
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Span

LONGEST_PAGE = 64 << 20
"""Bytes. A page is held whole, and several times over while it is taken apart."""
XML_DECLARED = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", re.ASCII)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)


def read_html(span: Span, bad: Bad) -> Iterator[Document]:
    """A file is a page."""
    source, name, page = span.file.source, span.file.name, bytearray()
    for chunk in chunks(span.file):
        page += chunk
        if len(page) > LONGEST_PAGE:
            raise Unreadable("page too long", f"is longer than {LONGEST_PAGE >> 20} MiB", "leave it out")
    said = "" if source.encoding in ("utf-8", "auto") else f"charset={source.encoding}"
    text, notes = decode_page(bytes(page), said)
    if text := text_of_page(text, source.html):
        yield from documents_of(text, name, notes)
    else:
        bad.left_out("no main content", name)


def decode_page(page: bytes, parameters: str) -> tuple[str, dict[str, Any]]:
    """Characters of a page, and `encoding` where it is not UTF-8; raises `BadRecord`.

    UTF-8 first, which nothing else passes for; then what the server said; then what the page says or looks like.
    """
    with needed("resiliparse"):
        from resiliparse.parse.encoding import detect_encoding

    said = CHARSET.search(parameters)
    declared = XML_DECLARED.match(page[:1024])
    for codec in (
        "utf-8",
        said and said[1],
        declared and declared[1].decode(),
        detect_encoding(page, from_html_meta=True),
    ):
        try:
            text, name = page.decode(codec or "utf-8"), codecs.lookup(codec or "utf-8").name
            return text.removeprefix("\ufeff"), {} if name == "utf-8" else {"encoding": name}
        except (UnicodeError, LookupError):
            continue
    raise BadRecord("unknown encoding", "is in no encoding that it names or looks like", "convert it to UTF-8")


def text_of_page(page: str, which: str) -> str:
    """The main content of HTML, or all of its text (Bevendorff et al., 2018: resiliparse)."""
    with needed("resiliparse"):
        from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(page, main_content=which == "main", alt_texts=False).strip()
