"""Wikipedia's XML dumps, read one article at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from xml.etree import ElementTree

from data_pipeline.document import EXAMPLE_CHARACTERS, Document
from data_pipeline.sources.bad import Bad, Unreadable, bad_record
from data_pipeline.sources.content import chunks
from data_pipeline.sources.formats.html import page_too_long
from data_pipeline.sources.formats.wikitext import text_of_markup
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Span
from data_pipeline.time_limit import time_limit

LONGEST_ARTICLE = 4 << 20
"""Bytes of markup. MediaWiki itself limits a page to 2 MiB."""
NOT_TEXT = ("6", "14")
"""Namespaces of files and categories. A link to them shows a picture or nothing."""


def read_wikipedia(span: Span, bad: Bad) -> Iterator[Document]:
    """Yield articles (namespace 0) that are not redirects, named by page id."""
    prefixes = {"file", "image", "category"}  # valid in every language, in addition to the names in that language
    longest = span.file.source.max_bytes or LONGEST_ARTICLE
    for element in _elements(span):
        if element.tag == "namespace":
            if element.get("key") in NOT_TEXT:
                prefixes.add((element.text or "").casefold())
            continue
        number = element.findtext("id", "")
        source = f"{span.file.name}@{number}"
        if element.findtext("ns", "0") != "0":
            bad.left_out("not an article", source)
        elif element.find("redirect") is not None:
            bad.left_out("redirect", source)
        else:
            markup = element.findtext("revision/text", "")
            try:
                if len(markup.encode()) > longest:
                    raise page_too_long(longest)
                with time_limit("article", markup):
                    text = text_of_markup(markup, span.file.source.leave_out, prefixes)
            except Exception as error:
                bad.record(source, f"page {number}", bad_record(error), markup[:EXAMPLE_CHARACTERS].encode())
                continue
            notes = {"id": number, "title": element.findtext("title", "")}
            yield from documents_of(text, source, notes)


def _elements(span: Span) -> Iterator[ElementTree.Element]:
    """Yield namespace and page elements, with names without XML namespace. An element is freed when the next is
    read."""
    pages = _Pages(span.file.source.max_bytes or LONGEST_ARTICLE)
    parser = ElementTree.XMLParser(target=pages)
    for chunk in chain(chunks(span.file), (b"",)):
        fault = None
        try:
            parser.feed(chunk) if chunk else parser.close()
        except ElementTree.ParseError as error:
            fault = error
        yield from pages.take()
        if fault:
            raise Unreadable("not XML", f"is not valid XML ({fault})", "fetch it again")


class _Pages(ElementTree.TreeBuilder):
    """Collector of completed elements. Text is truncated once it exceeds `longest`."""

    def __init__(self, longest: int):
        super().__init__()
        self.longest = longest
        self.root: ElementTree.Element | None = None
        self.size = 0
        self.ended: list[ElementTree.Element] = []

    def take(self) -> list[ElementTree.Element]:
        ended, self.ended = self.ended, []
        return ended

    def start(self, tag: str, attributes: dict[str, str]) -> ElementTree.Element:  # type: ignore[override]
        name, self.size = tag.rpartition("}")[2], 0
        if self.root is None and name != "mediawiki":
            raise Unreadable("not a Wikipedia dump", f"is XML of another kind (`{name}`)", "remove it")
        element = super().start(name, attributes)
        self.root = element if self.root is None else self.root
        return element

    def data(self, text: str) -> None:
        if self.size <= self.longest:
            super().data(text)
        self.size += len(text)

    def end(self, tag: str) -> ElementTree.Element:
        element = super().end(tag.rpartition("}")[2])
        if element.tag in ("namespace", "page"):
            self.ended.append(element)
            assert self.root is not None
            self.root.clear()
        return element
