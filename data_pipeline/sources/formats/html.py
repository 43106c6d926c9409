"""Extract the text of HTML pages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.document import Document
from data_pipeline.sources.bad import Bad, BadRecord, needed
from data_pipeline.sources.content import chunks
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Span
from data_pipeline.time_limit import time_limit

LONGEST_PAGE = 64 << 20
"""Bytes. A page is held in memory, and extraction makes several copies."""
XML_DECLARED = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", re.ASCII)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)


def read_html(span: Span, bad: Bad) -> Iterator[Document]:
    """Read a file as one page."""
    source, name, page = span.file.source, span.file.name, bytearray()
    for chunk in chunks(span.file):
        page += chunk
        if len(page) > (source.max_bytes or LONGEST_PAGE):
            raise page_too_long(source.max_bytes or LONGEST_PAGE)
    said = "" if source.encoding in ("utf-8", "auto") else f"charset={source.encoding}"
    text, notes = decode_page(bytes(page), said)
    if text := text_of_page(text, source.html):
        yield from documents_of(text, name, notes)
    else:
        bad.left_out("no main content", name)


def page_too_long(longest: int) -> BadRecord:
    return BadRecord("page too long", f"is longer than {longest:,} bytes", "raise `max_bytes` of its source")


def decode_page(page: bytes, parameters: str) -> tuple[str, dict[str, Any]]:
    """Decode a page; the notes hold `encoding` if it is not UTF-8. Raises `BadRecord`.

    Tries UTF-8 first, because text in another encoding is almost never valid UTF-8; then the charset of the HTTP
    header, the one that the page declares, and the one detected from its bytes.
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


MAX_DEPTH = 4096
"""Maximum nesting of elements. The time to extract the main content grows quadratically. Browsers stop at 512."""
MAX_ATTRIBUTES = 4096
"""Maximum words in one tag. The parser compares each attribute with all others."""
LONGEST_TAG = 1 << 15
"""Characters. The attributes of a shorter tag are not counted."""
TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)")
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
# fmt: off
WITHOUT_END = frozenset({
    "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "tfoot", "colgroup", "option", "optgroup", "rp", "rt",
    "br", "hr", "img", "input", "link", "meta", "area", "base", "col", "embed", "source", "track", "wbr", "param", "a",
    "abbr", "b", "big", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "nobr", "q", "s", "small",
    "span", "strike", "strong", "sub", "sup", "tt", "u",
})
# fmt: on
"""Elements that do not nest deeper when their end tag is missing, and inline elements, which cost little."""


def refuse_tangled(page: str) -> None:
    """Raise `BadRecord` for a page on which the parser would take quadratic time."""
    if len(page) > LONGEST_TAG and any(map(_has_too_many_attributes, page.split(">"))):
        what = f"has a tag with more than {MAX_ATTRIBUTES:,} attributes"
        raise BadRecord("tag too long", what, "take it out")
    if page.count("<") <= MAX_DEPTH:
        return
    depth = 0
    for end, name in TAG.findall(page):
        if name.lower() not in WITHOUT_END:
            depth = max(0, depth - 1) if end else depth + 1
            if depth > MAX_DEPTH:
                what = f"has more than {MAX_DEPTH:,} elements in each other"
                raise BadRecord("nested too deep", what, "take it out")


def _has_too_many_attributes(piece: str) -> bool:
    """Whether the last tag of `piece`, the part of a page up to a `>`, has too many attributes."""
    tag = piece[piece.rfind("<") :] if len(piece) > LONGEST_TAG else ""
    return len(tag) > LONGEST_TAG and len(QUOTED.sub("", tag).split()) > MAX_ATTRIBUTES


def text_of_page(page: str, which: str) -> str:
    """Extract the main content or all text of an HTML page (Bevendorff et al., 2018: resiliparse)."""
    with needed("resiliparse"):
        from resiliparse.extract.html2text import extract_plain_text

    refuse_tangled(page)
    with time_limit("page", page):
        return extract_plain_text(page, main_content=which == "main", alt_texts=False).strip()
