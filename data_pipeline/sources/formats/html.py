"""Extract the text of HTML pages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.content import read_chunks
from data_pipeline.sources.encodings import is_damaged_utf8
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import Span
from data_pipeline.sources.unreadable import UnreadableHandler, UnreadableRecord, require_library
from data_pipeline.time_limit import time_limit

MAX_PAGE_BYTES = 64 << 20
"""Maximum bytes of a page, because a page is held in memory and extraction makes several copies."""
XML_DECLARED = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", re.ASCII)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)


def read_html(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read an HTML file as one page."""
    source, name, page = span.file.source, span.file.name, bytearray()
    for chunk in read_chunks(span.file):
        page += chunk
        if len(page) > (source.max_bytes or MAX_PAGE_BYTES):
            raise page_too_long_error(source.max_bytes or MAX_PAGE_BYTES)
    parameters = "" if source.encoding in ("utf-8", "auto") else f"charset={source.encoding}"
    text, notes = decode_page(bytes(page), parameters)
    if text := text_of_page(text, source.html):
        yield from to_documents(text, name, notes)
    else:
        handler.count_skipped("no main content", name)


def page_too_long_error(longest: int) -> UnreadableRecord:
    return UnreadableRecord("page too long", f"is longer than {longest:,} bytes", "raise `max_bytes` of its source")


def decode_page(page: bytes, parameters: str) -> tuple[str, dict[str, Any]]:
    """Decode an HTML page; the notes hold `encoding` if it is not UTF-8. Raises `UnreadableRecord`.

    Tries UTF-8 first, because text in another encoding is almost never valid UTF-8. As in a browser, a few wrong bytes
    are replaced by U+FFFD. Then the charset of the HTTP header, the one that the page declares, and the one detected
    from its bytes are tried.
    """
    try:
        return page.decode().removeprefix("\ufeff"), {}
    except UnicodeDecodeError:
        if is_damaged_utf8(page):
            return page.decode("utf-8", "replace").removeprefix("\ufeff"), {}
    with require_library("resiliparse"):
        from resiliparse.parse.encoding import detect_encoding

    charset = CHARSET.search(parameters)
    declared = XML_DECLARED.match(page[:1024])
    for codec in (
        charset and charset[1],
        declared and declared[1].decode(),
        detect_encoding(page, from_html_meta=True),
    ):
        try:
            if codec:
                return page.decode(codec).removeprefix("\ufeff"), {"encoding": codecs.lookup(codec).name}
        except (UnicodeError, LookupError):
            continue
    raise UnreadableRecord("unknown encoding", "is in no encoding that it declares or resembles", "convert it to UTF-8")


MAX_DEPTH = 4096
"""Maximum nesting of HTML elements. The time to extract the main content grows quadratically. Browsers stop at 512."""
MAX_ATTRIBUTES = 4096
"""Maximum words in one HTML tag. The parser compares each attribute with all others."""
MAX_UNCHECKED_TAG = 1 << 15
"""Maximum characters of a tag whose attributes are not counted."""
TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)")
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
# fmt: off
UNNESTED_TAGS = frozenset({
    "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "tfoot", "colgroup", "option", "optgroup", "rp", "rt",
    "br", "hr", "img", "input", "link", "meta", "area", "base", "col", "embed", "source", "track", "wbr", "param", "a",
    "abbr", "b", "big", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "nobr", "q", "s", "small",
    "span", "strike", "strong", "sub", "sup", "tt", "u",
})
# fmt: on
"""Elements that do not nest deeper when their end tag is missing, and inline elements, which cost little."""


def _refuse_costly_page(page: str) -> None:
    """Raise `UnreadableRecord` for an HTML page on which the parser would take quadratic time."""
    if len(page) > MAX_UNCHECKED_TAG and any(map(_has_too_many_attributes, page.split(">"))):
        problem = f"has a tag with more than {MAX_ATTRIBUTES:,} attributes"
        raise UnreadableRecord("tag too long", problem, "remove it")
    if page.count("<") <= MAX_DEPTH:
        return
    depth = 0
    for end, name in TAG.findall(page):
        if name.lower() not in UNNESTED_TAGS:
            depth = max(0, depth - 1) if end else depth + 1
            if depth > MAX_DEPTH:
                problem = f"has elements nested more than {MAX_DEPTH:,} deep"
                raise UnreadableRecord("nested too deeply", problem, "remove it")


def _has_too_many_attributes(piece: str) -> bool:
    """Whether the last tag of `piece`, the part of a page up to a `>`, has too many attributes."""
    tag = piece[piece.rfind("<") :] if len(piece) > MAX_UNCHECKED_TAG else ""
    return len(tag) > MAX_UNCHECKED_TAG and len(QUOTED.sub("", tag).split()) > MAX_ATTRIBUTES


def text_of_page(page: str, which: str) -> str:
    """Extract the main content or all text of an HTML page (Bevendorff et al., 2018: resiliparse)."""
    with require_library("resiliparse"):
        from resiliparse.extract.html2text import extract_plain_text

    _refuse_costly_page(page)
    with time_limit("page", page):
        return extract_plain_text(page, main_content=which == "main", alt_texts=False).strip()
