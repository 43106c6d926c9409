"""Hide unclosed openings of markup from the parser.

For each unclosed opening, mwparserfromhell reads to the end of the page before it treats the opening as text. Some
thousand of them take minutes. If the parser would reread more than MAX_REREAD characters, the unclosed openings of the
page are hidden. Any other page is parsed unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_REREAD = 4 << 20
"""Maximum characters of an article that the parser reads again, which takes about a second."""

SIGNS = "{[<|"
HIDDEN = str.maketrans(SIGNS, "\x0e\x0f\x10\x11")
UNHIDDEN = str.maketrans("\x0e\x0f\x10\x11", SIGNS)
"""Replacements of hidden characters, which XML cannot contain -> the original characters."""

TOKEN = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\[|\]|<(?P<end>/?)(?P<tag>[a-z]++)[^<>]*?(?P<single>/?)>|<(?:!--)?",
    re.IGNORECASE,
)
LITERAL_ENDS = {"<!--": re.compile("-->"), "<nowiki>": re.compile("</nowiki>", re.IGNORECASE)}
"""Ends of literal text in markup, by the markup that starts it."""
CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|", "]": "["}
VOID = frozenset({"br", "hr", "wbr", "meta", "link", "img", "li", "dt", "dd", "td", "th", "tr"})
"""HTML tags without an end tag."""


def without_unclosed(markup: str) -> str:
    """Return the markup of an article, with its unclosed openings hidden if it has too many."""
    unclosed = _unclosed_spans(markup)
    if sum(len(markup) - start for start, _ in unclosed) <= MAX_REREAD:
        return markup
    pieces, end = [], 0
    for start, stop in unclosed:
        pieces += [markup[end:start], markup[start:stop].translate(HIDDEN)]
        end = stop
    return "".join((*pieces, markup[end:]))


def _unclosed_spans(markup: str) -> list[tuple[int, int]]:
    """Return the spans (start, end) of unclosed openings, in order."""
    opened: list[tuple[str, int, int]] = []
    unclosed: list[tuple[int, int]] = []
    num_open: dict[str, int] = {}
    """Opening markup -> number of its open spans."""
    for match in _markup_tokens(markup):
        token, tag = match[0], (match["tag"] or "").lower()
        closed = f"<{tag}" if match["end"] else CLOSES.get(token)
        if closed is None:
            if token in ("<", "<!--") or token.count('"') % 2:  # an attribute's quote is not closed
                unclosed.append(match.span())
            elif not tag or not (match["single"] or tag in VOID):
                opening = f"<{tag}" if tag else token
                opened.append((opening, *match.span()))
                num_open[opening] = num_open.get(opening, 0) + 1
        elif num_open.get(closed):
            while True:
                opening, start, stop = opened.pop()
                num_open[opening] -= 1
                if opening == closed:
                    break
                unclosed.append((start, stop))
    unclosed += [(start, stop) for _, start, stop in opened]
    return sorted(unclosed)


def _markup_tokens(markup: str) -> Iterator[re.Match[str]]:
    """Yield the openings and ends of markup, without those in comments and `<nowiki>`."""
    position, absent = 0, set()
    """`absent`: openings without an end after this position, so that each end is searched only once in vain."""
    while match := TOKEN.search(markup, position):
        position = match.end()
        opening = match[0].lower()
        if opening in LITERAL_ENDS and opening not in absent:
            if end := LITERAL_ENDS[opening].search(markup, position):
                position = end.end()
                continue
            absent.add(opening)
        yield match
