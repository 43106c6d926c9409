"""Wikipedia's XML dumps, read one article at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from xml.etree import ElementTree

from data_pipeline.document import EXAMPLE_CHARACTERS, Document
from data_pipeline.sources.content import read_chunks
from data_pipeline.sources.formats.html import page_too_long_error
from data_pipeline.sources.formats.wikitext import text_of_markup
from data_pipeline.sources.pieces import to_documents
from data_pipeline.sources.source import Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, to_unreadable_record
from data_pipeline.time_limit import time_limit

MAX_ARTICLE_BYTES = 4 << 20
"""Maximum bytes of an article's markup. MediaWiki itself limits a page to 2 MiB."""
NO_MEMORY = 1
"""Code of expat's error for too little memory, `XML_ERROR_NO_MEMORY`."""
FILE_NAMESPACES = ("6", "14")
"""Namespaces of files and categories of Wikipedia. A link to them shows a picture or nothing."""


def read_wikipedia(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    """Read a Wikipedia dump: yield articles (namespace 0) that are not redirects, named by page id."""
    prefixes = {"file", "image", "category"}  # valid in every language, in addition to the names in that language
    longest = span.file.source.max_bytes or MAX_ARTICLE_BYTES
    for element in _read_elements(span):
        if element.tag == "namespace":
            if element.get("key") in FILE_NAMESPACES:
                prefixes.add((element.text or "").casefold())
            continue
        page_id = element.findtext("id", "")
        source = f"{span.file.name}@{page_id}"
        if element.findtext("ns", "0") != "0":
            handler.count_skipped("not an article", source)
        elif element.find("redirect") is not None:
            handler.count_skipped("redirect", source)
        else:
            markup = element.findtext("revision/text", "")
            try:
                if len(markup.encode()) > longest:
                    raise page_too_long_error(longest)
                with time_limit("article", markup):
                    text = text_of_markup(markup, span.file.source.leave_out, prefixes)
            except Exception as error:
                handler.handle_record(
                    source, f"page {page_id}", to_unreadable_record(error), markup[:EXAMPLE_CHARACTERS].encode()
                )
                continue
            notes = {"id": page_id, "title": element.findtext("title", "")}
            yield from to_documents(text, source, notes)


def _read_elements(span: Span) -> Iterator[ElementTree.Element]:
    """Yield namespace and page elements, with names without XML namespace. An element is freed when the next is
    read."""
    pages = _ElementCollector(span.file.source.max_bytes or MAX_ARTICLE_BYTES)
    parser = ElementTree.XMLParser(target=pages)
    for chunk in chain(read_chunks(span.file), (b"",)):
        parse_error = None
        try:
            parser.feed(chunk) if chunk else parser.close()
        except ElementTree.ParseError as error:
            if error.code == NO_MEMORY:
                raise MemoryError from None
            parse_error = error
        yield from pages.take()
        if parse_error:
            raise Unreadable("not XML", f"is not valid XML ({parse_error})", "download it again")


class _ElementCollector(ElementTree.TreeBuilder):
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
