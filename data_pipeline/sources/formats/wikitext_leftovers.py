"""Remove unclosed markup, which the parser returns as text: templates, tables, links, tags, comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

SIGNS = "{}[]|!<>"
LITERAL = str.maketrans(SIGNS, "\1\2\3\4\5\6\7\10")
"""Control characters that replace literal markup characters until leftovers are removed; XML cannot contain them."""
PLAIN = str.maketrans("\1\2\3\4\5\6\7\10", SIGNS)

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
BRACE = re.compile(r"([{}])")
OPEN_TEMPLATE = re.compile(r"\{\{.*(?:\n[ \t]*(?:\||!|\}\}).*)*")
"""Pattern of an unclosed template: the rest of its line, and the following lines of arguments."""
LINK = re.compile(r"\[\[(?:[^\[\]|\n]{0,200}\|)?|\]\]|\{\{|\}\}")
TAG = re.compile(
    r"</?(?:ref|references|nowiki|gallery|math|div|span|small|big|center|br|p|sup|sub|b|i|u|s|table|tr|td|th|li|ul|ol"
    r"|blockquote|code|includeonly|noinclude|onlyinclude|poem|section|font)\b[^<>\n]*/?>",
    re.IGNORECASE,
)
ROW = re.compile(r"[:*#; \t]*(?:\{\||\|\}|\|-|\|\+)")
"""Pattern of the start of a table line that holds no cell."""
CELL = re.compile(r"[ \t]*[|!]")
CELLS = re.compile(r"\|\||!!")


def protect_literal(text: str) -> str:
    """Protect literal text from being treated as MediaWiki markup."""
    return text.translate(LITERAL)


def without_leftovers(text: str, *, tables: bool) -> str:
    """Return the text of an article without leftover markup. With `tables`, the cells of an unclosed table are
    retained."""
    text = COMMENT.sub("", text)
    text = "\n".join(_without_rows(OPEN_TEMPLATE.sub("", _without_templates(text)).split("\n"), tables))
    return TAG.sub("", LINK.sub("", text)).translate(PLAIN)


def _without_templates(text: str) -> str:
    """Repeatedly remove `{{...}}` without braces inside, for templates nested deeper than the parser supports."""
    if "}}" not in text:
        return text
    retained: list[str] = []
    """Retained pieces of the markup: braces, and the text between them."""
    for piece in BRACE.split(text):
        if not piece:
            continue
        retained.append(piece)
        if retained[-2:] == ["}", "}"]:
            index = len(retained) - 3
            while index > 0 and retained[index] not in "{}":
                index -= 1
            if index > 0 and retained[index - 1 : index + 1] == ["{", "{"]:
                del retained[index - 1 :]
    return "".join(retained)


def _without_rows(lines: list[str], tables: bool) -> Iterator[str]:
    inside = False
    for line in lines:
        if ROW.match(line):
            inside = True
        elif inside and not line.strip():
            yield line
        elif (inside or line.lstrip().startswith("|")) and CELL.match(line):
            inside = True
            if tables:
                cells = CELLS.split(line.strip()[1:])
                yield "\t".join(cell.rpartition("|")[2].strip() for cell in cells)
        else:
            inside = False
            yield line
