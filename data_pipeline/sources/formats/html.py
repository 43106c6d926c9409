"""Pages to text."""

from __future__ import annotations

import codecs
import re
from typing import Any

from data_pipeline.sources.bad import BadRecord, needed

CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)


def decode_page(page: bytes, parameters: str) -> tuple[str, dict[str, Any]]:
    """Characters of a page, and `encoding` where it is not UTF-8; raises `BadRecord`.

    UTF-8 first, which nothing else passes for; then what the server said; then what the page says or looks like.
    """
    with needed("resiliparse"):
        from resiliparse.parse.encoding import detect_encoding

    said = CHARSET.search(parameters)
    for codec in ("utf-8", said and said[1], detect_encoding(page, from_html_meta=True)):
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
