"""Openings of markup that are never closed, hidden from the parser.

For each of them mwparserfromhell reads to the end of the page before it takes the opening as text: some thousand of
them take minutes. Where they would have the parser read more than MAX_REREAD characters, the page is given to it
without them. Any other page is parsed as it is.
"""

from __future__ import annotations

import re

MAX_REREAD = 4 << 20
"""Characters; about a second."""

SIGNS = "{[<|"
HIDDEN = str.maketrans(SIGNS, "\x0e\x0f\x10\x11")
AS_WRITTEN = str.maketrans("\x0e\x0f\x10\x11", SIGNS)
"""Hidden signs, which XML cannot hold -> the signs."""

TOKEN = re.compile(
    r"<!--.*?-->|<nowiki>.*?</nowiki>|\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\[|\]|<(?P<end>/?)(?P<tag>[a-z]+)[^<>]*?(?P<single>/?)>|<",
    re.IGNORECASE | re.DOTALL,
)
CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|", "]": "["}
VOID = frozenset({"br", "hr", "wbr", "meta", "link", "img", "li", "dt", "dd", "td", "th", "tr"})
"""Tags that need no end."""


def without_unclosed(markup: str) -> str:
    """The markup, with openings hidden that are never closed if they are too many."""
    unclosed = _unclosed(markup)
    if sum(len(markup) - start for start, _ in unclosed) <= MAX_REREAD:
        return markup
    pieces, done = [], 0
    for start, stop in unclosed:
        pieces += [markup[done:start], markup[start:stop].translate(HIDDEN)]
        done = stop
    return "".join((*pieces, markup[done:]))


def _unclosed(markup: str) -> list[tuple[int, int]]:
    """Where openings begin and end that have no closing in their order."""
    opened: list[tuple[str, int, int]] = []
    unclosed: list[tuple[int, int]] = []
    waiting: dict[str, int] = {}
    """Opening -> how many of it are open."""
    for match in TOKEN.finditer(markup):
        token, tag = match[0], (match["tag"] or "").lower()
        if len(token) > 2 and not tag:
            continue  # a comment or nowiki
        closed = f"<{tag}" if match["end"] else CLOSES.get(token)
        if closed is None:
            if token == "<" or token.count('"') % 2:  # the quote of an attribute is not closed
                unclosed.append(match.span())
            elif not tag or not (match["single"] or tag in VOID):
                opening = f"<{tag}" if tag else token
                opened.append((opening, *match.span()))
                waiting[opening] = waiting.get(opening, 0) + 1
        elif waiting.get(closed):
            while True:
                opening, start, stop = opened.pop()
                waiting[opening] -= 1
                if opening == closed:
                    break
                unclosed.append((start, stop))
    unclosed += [(start, stop) for _, start, stop in opened]
    return sorted(unclosed)
