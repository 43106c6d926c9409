"""Spans to documents. What cannot be read is counted under a reason, or stops the build when it was asked to."""

from __future__ import annotations

from collections.abc import Iterator

from data_pipeline.document import Document, Dropped
from data_pipeline.sources.bad import Bad, Unreadable
from data_pipeline.sources.formats import can_be_cut, format_of
from data_pipeline.sources.lines import count_lines
from data_pipeline.sources.source import OnError, Span


def read(span: Span, dropped: Dropped, on_error: OnError = "skip") -> Iterator[Document]:
    """The documents of a span, in order. Where a file breaks off, those before stay, and the rest counts once.

    Raises `UserError` for a file that cannot be read, with `on_error="fail"`; and an `OSError` of a disk or a server
    that gives up halfway, which is not counted: another time it may not.
    """
    if span.start and not can_be_cut(span.file):
        return  # the span at the beginning has it all
    bad = Bad(span.file, dropped, on_error, count_lines(span.file))
    try:
        yield from format_of(span.file).reader(span, bad)
    except Unreadable as error:
        # What is wrong with all of a file its first span tells, once.
        if not span.start or error.reason == "unreadable":
            bad.whole(error)
