"""Read the documents of spans. Unreadable text is counted under a drop reason, or ends the build (`on_error`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from data_pipeline.document import Document, DropCounts, is_document_error, memory_error
from data_pipeline.sources.archives import archive_kind, copy_members
from data_pipeline.sources.compression import has_unsupported_compression
from data_pipeline.sources.formats import FORMATS, can_be_cut, format_of, skip_reason
from data_pipeline.sources.lines import line_counter
from data_pipeline.sources.overrides import apply_overrides
from data_pipeline.sources.source import InputFile, OnError, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, to_unreadable_record
from megaptm.errors import UserError, is_resource_limit
from megaptm.storage import is_remote


def read_span(span: Span, dropped: DropCounts, on_error: OnError = "skip") -> Iterator[Document]:
    """Yield the documents of a span of a source file, in order. If a file is truncated, its earlier documents are
    retained.

    The unreadable remainder counts as one drop. Raises `UserError` for a file that cannot be read if `on_error="fail"`,
    and in any case for a disk that fails while reading; remote files raise their server's error. These errors are not
    counted, because a later attempt may succeed.
    """
    if span.start and not can_be_cut(span.file):
        return  # the first span contains the whole file
    handler = UnreadableHandler(span.file, dropped, on_error, line_counter(span.file))
    try:
        if archive_kind(span.file.name):
            for member in copy_members(span.file, handler):
                yield from _read_member(member, handler, on_error)
        elif has_unsupported_compression(span.file.name):
            problem, remedy = "has an unsupported compression", "decompress it, or use .gz, .zst, .bz2 or .xz"
            raise Unreadable("unsupported compression", problem, remedy)
        else:
            name, domain = format_of(span.file), span.file.source.domain
            for document in FORMATS[name].reader(span, handler):
                notes = {**document.notes, "domain": domain} if domain else document.notes
                yield replace(document, origin=f"{name} {span.file.source.path}", notes=notes)
    except Unreadable as error:
        # An error of the whole file is reported once, by its first span.
        if not span.start or error.reason == "unreadable":
            handler.handle_file(error)
    except MemoryError as error:
        raise memory_error(f"read {span.file.shown_path}") from error
    except Exception as error:
        if is_document_error(error):
            handler.handle_file(to_unreadable_record(error))
        elif not isinstance(error, OSError) or is_remote(span.file.path) or is_resource_limit(error):
            raise
        else:
            problem = f"cannot be read to its end ({error.strerror or error})"
            raise UserError(
                f"{span.file.shown_path} {problem}: check its disk, or remove the file from the sources."
            ) from error


def _read_member(file: InputFile, handler: UnreadableHandler, on_error: OnError) -> Iterator[Document]:
    with_overrides = apply_overrides(file)
    if archive_kind(file.name):
        handler.count_skipped("nested archive", file.name)
    elif with_overrides is file and (reason := skip_reason(file.name, file.source, "folder")):
        handler.count_skipped(reason, file.name)
    else:
        yield from read_span(Span(with_overrides), handler.dropped, on_error)
