"""Read the documents of spans. Unreadable text is counted under a drop reason, or ends the build (`on_error`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from data_pipeline.document import Document, Dropped, is_of_document
from data_pipeline.sources.archives import archive_kind, members
from data_pipeline.sources.bad import Bad, Unreadable, bad_record
from data_pipeline.sources.compression import has_other_compression
from data_pipeline.sources.formats import FORMATS, can_be_cut, format_of, passed_over
from data_pipeline.sources.lines import count_lines
from data_pipeline.sources.overrides import overridden
from data_pipeline.sources.source import InputFile, OnError, Span
from megaptm.errors import UserError
from megaptm.storage import is_remote


def read(span: Span, dropped: Dropped, on_error: OnError = "skip") -> Iterator[Document]:
    """Yield the documents of a span, in order. If a file is truncated, its earlier documents are retained.

    The unreadable remainder counts as one drop. Raises `UserError` for a file that cannot be read if `on_error="fail"`,
    and in any case for a disk that fails while reading; remote files raise their server's error. These errors are not
    counted, because a later attempt may succeed.
    """
    if span.start and not can_be_cut(span.file):
        return  # the first span contains the whole file
    bad = Bad(span.file, dropped, on_error, count_lines(span.file))
    try:
        if archive_kind(span.file.name):
            for member in members(span.file, bad):
                yield from _read_member(member, bad, on_error)
        elif has_other_compression(span.file.name):
            what = "is compressed in a way that is not read here"
            raise Unreadable("unknown compression", what, "decompress it, or use .gz, .zst, .bz2 or .xz")
        else:
            name = format_of(span.file)
            for document in FORMATS[name].reader(span, bad):
                yield replace(document, origin=f"{name} {span.file.source.path}")
    except Unreadable as error:
        # An error of the whole file is reported once, by its first span.
        if not span.start or error.reason == "unreadable":
            bad.whole(error)
    except Exception as error:
        if is_of_document(error):
            bad.whole(bad_record(error))
        elif not isinstance(error, OSError) or is_remote(span.file.path):
            raise
        else:
            what = f"cannot be read to its end ({error.strerror or error})"
            raise UserError(f"{span.file.place} {what}: see to its disk, or take it out of the sources.") from error


def _read_member(file: InputFile, bad: Bad, on_error: OnError) -> Iterator[Document]:
    own = overridden(file)
    if archive_kind(file.name):
        bad.left_out("archive in an archive", file.name)
    elif own is file and (reason := passed_over(file.name, file.source, "folder")):
        bad.left_out(reason, file.name)
    else:
        yield from read(Span(own), bad.dropped, on_error)
