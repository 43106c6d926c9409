"""Wikipedia's XML dumps: articles as text, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from data_pipeline.document import EXAMPLE_CHARACTERS, Document
from data_pipeline.sources.bad import Bad, Unreadable, bad_record
from data_pipeline.sources.content import Stream, chunks
from data_pipeline.sources.formats.wikitext import text_of_markup
from data_pipeline.sources.pieces import documents_of
from data_pipeline.sources.source import Span

NOT_TEXT = ("6", "14")
"""Namespaces of files and categories: a link to one shows a picture, or nothing."""


def read_wikipedia(span: Span, bad: Bad) -> Iterator[Document]:
    """Articles (namespace 0) that are not redirects, named by the numbers of their pages."""
    prefixes = {"file", "image", "category"}  # these hold in every language, beside its own
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
                text = text_of_markup(markup, span.file.source.leave_out, prefixes)
            except Exception as error:
                bad.record(source, f"page {number}", bad_record(error), markup[:EXAMPLE_CHARACTERS].encode())
                continue
            notes = {"id": number, "title": element.findtext("title", "")}
            yield from documents_of(text, source, notes)


def _elements(span: Span) -> Iterator[ElementTree.Element]:
    """Namespaces and pages, names without their XML namespace; each is gone when the next is asked for."""
    root = None
    try:
        for event, element in ElementTree.iterparse(Stream(chunks(span.file)), ("start", "end")):
            element.tag = element.tag.rpartition("}")[2]
            if root is None:
                root = element
                if root.tag != "mediawiki":
                    raise Unreadable("not a Wikipedia dump", f"is XML of another kind (`{root.tag}`)", "remove it")
            elif event == "end" and element.tag in ("namespace", "page"):
                yield element
                root.clear()
    except ElementTree.ParseError as error:
        raise Unreadable("not XML", f"is not valid XML ({error})", "fetch it again") from None
