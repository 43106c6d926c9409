"""Convert MediaWiki markup to text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from data_pipeline.sources.formats.wikitext_leftovers import protect_literal, without_leftovers
from data_pipeline.sources.formats.wikitext_unclosed import UNHIDDEN, without_unclosed
from data_pipeline.sources.unreadable import require_library

# Tags whose content is not prose: formulas, source code, pictures, instructions.
DROPPED_TAGS = frozenset({
    "ref", "references", "gallery", "math", "chem", "timeline", "imagemap", "score", "syntaxhighlight", "source",
    "graph", "templatestyles", "mapframe", "maplink", "includeonly", "style", "hiero",
})  # fmt: skip
LIST_ITEMS = frozenset({"li", "dt", "dd"})
ITEM = "\0"
"""Temporary mark of the start of a list item; XML cannot contain this character."""
CELL_END = {"td": "\t", "th": "\t", "tr": "\n", "p": "\n\n", "div": "\n", "br": "\n"}

SWITCHES = re.compile(r"__[A-Z]+__")
QUOTES = re.compile(r"'{2,}")
"""Quotes of MediaWiki markup: two mark italics, three bold, five both. Of four, the first is an apostrophe; of more,
those before the last five."""
EMPTY_BRACKETS = re.compile(r" ?\([\s,;:]*\)")
"""Remainder of a removed pronunciation template."""
SPACES = re.compile(r"  +")
BLANK_LINES = re.compile(r"\n{3,}")


def text_of_markup(markup: str, leave_out: Collection[str], not_text: Collection[str]) -> str:
    """Return the prose of a Wikipedia article without templates. `not_text`: lower-case prefixes of links without
    visible text."""
    with require_library("mwparserfromhell"):
        import mwparserfromhell

    # Quotes for bold and italics are often unbalanced, which is expensive to parse. They are removed here instead.
    code = mwparserfromhell.parse(without_unclosed(markup), skip_style_tags=True)
    text = "".join(_TextVisitor(leave_out, not_text).texts(code)).translate(UNHIDDEN)
    if "lists" in leave_out:
        text = "\n".join(line for line in text.split("\n") if ITEM not in line)
    text = without_leftovers(text, tables="tables" not in leave_out)
    text = QUOTES.sub(_literal_apostrophes, SWITCHES.sub("", text.replace(ITEM, "")))
    text = SPACES.sub(" ", EMPTY_BRACKETS.sub("", text))
    text = "\n".join(line.strip(" \t") for line in text.split("\n"))
    return BLANK_LINES.sub("\n\n", text).strip()


def _literal_apostrophes(quotes: re.Match[str]) -> str:
    count = len(quotes[0])
    return "'" * (1 if count == 4 else max(0, count - 5))


class _TextVisitor:
    """Visitor of the parsed nodes of MediaWiki markup, which yields their text."""

    def __init__(self, leave_out: Collection[str], not_text: Collection[str]):
        self.leave_out = leave_out
        self.not_text = not_text

    def texts(self, code: Any) -> Iterable[str]:
        for node in code.nodes if code is not None else ():
            visit = getattr(self, type(node).__name__.lower(), None)
            if visit is not None:  # templates, their arguments and comments have no visible text
                yield from visit(node)

    def text(self, node: Any) -> Iterable[str]:
        yield node.value

    def htmlentity(self, node: Any) -> Iterable[str]:
        yield protect_literal(node.normalize())

    def heading(self, node: Any) -> Iterable[str]:
        if "headers" not in self.leave_out:
            yield from self.texts(node.title)

    def wikilink(self, node: Any) -> Iterable[str]:
        prefix, colon, _ = str(node.title).partition(":")
        if not (colon and prefix.strip().casefold() in self.not_text):
            yield from self.texts(node.title if node.text is None else node.text)

    def externallink(self, node: Any) -> Iterable[str]:
        yield from self.texts(node.title if node.brackets else node.url)

    def tag(self, node: Any) -> Iterable[str]:
        name = str(node.tag).strip().lower()
        if name in DROPPED_TAGS or (name == "table" and "tables" in self.leave_out):
            return
        if name == "nowiki":
            yield protect_literal("".join(self.texts(node.contents)))
            return
        if name in LIST_ITEMS:
            yield ITEM
        yield from self.texts(node.contents)
        yield CELL_END.get(name, "")
