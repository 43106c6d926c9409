"""Unreadable text: counted under a drop reason, or reported as a `UserError` that ends the build (`on_error`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from data_pipeline.document import EXAMPLE_CHARACTERS, TIME_LIMIT_EXCEEDED, DropCounts, is_document_error
from data_pipeline.sources.source import InputFile, OnError
from data_pipeline.time_limit import TimeLimitError
from megaptm.credentials import brief_message
from megaptm.errors import UserError


class Unreadable(Exception):  # noqa: N818 # describes a file, and does not always end the build
    """Raised for a source file that cannot be read, or whose remainder cannot be read.

    With `loses_text=False`, the file can be skipped without loss of text. Its remedy is then only shown if the build
    ends.
    """

    def __init__(self, reason: str, problem: str, remedy: str, *, loses_text: bool = True):
        super().__init__(problem)
        self.loses_text = loses_text
        self.reason = reason
        self.problem = problem
        self.remedy = remedy


class UnreadableRecord(Unreadable):
    """A record that cannot be read, in a file whose other records can."""


class NotTextError(Exception):
    """Content of an archive or a page that is not text. This is not an error."""


def to_unreadable_record(error: Exception) -> UnreadableRecord:
    """Convert any exception about the current record of a source to an `UnreadableRecord`, so that no document ends a
    build.

    Re-raises an exception that is not about the record: a mistake in the recipe, or a failing disk or server.
    """
    if isinstance(error, UnreadableRecord):
        return error
    if isinstance(error, Unreadable) or not is_document_error(error):
        raise error
    if isinstance(error, TimeLimitError):
        return UnreadableRecord(TIME_LIMIT_EXCEEDED, str(error), "remove it, or raise `max_seconds`")
    return UnreadableRecord(
        "cannot be read", f"cannot be read ({type(error).__name__}: {brief_message(error)})", "remove it"
    )


class UnreadableHandler:
    """Handler of text that cannot be read: drops and counts it, or ends the build."""

    def __init__(self, file: InputFile, dropped: DropCounts, on_error: OnError, line_at: Callable[[int], int]):
        self.file = file
        self.dropped = dropped
        self.on_error = on_error
        self.line_at = line_at

    def handle_file(self, error: Unreadable) -> None:
        """Handle an error of a whole source file or of its remainder."""
        self._count_or_raise(error, self.file.name, "", b"")

    def handle_line(self, offset: int, error: UnreadableRecord, text: bytes | bytearray = b"") -> None:
        """Handle an error of the record at a byte offset of a source file. An error that ends the build gives a line
        number instead of bytes."""
        where = f"line {self.line_at(offset):,} " if self.on_error == "fail" else ""
        self._count_or_raise(error, f"{self.file.name}@{offset}", where, text)

    def handle_record(self, source: str, where: str, error: UnreadableRecord, text: bytes | bytearray = b"") -> None:
        """Handle an error of a source's record that is located by something other than a line, such as `row 12`."""
        self._count_or_raise(error, source, f"{where} ", text)

    def count_skipped(self, reason: str, source: str) -> None:
        """Count content of a source that is not text. It never ends the build, whatever `on_error` is."""
        self.dropped.add(reason, source)

    def _count_or_raise(self, error: Unreadable, source: str, where: str, text: bytes | bytearray) -> None:
        if self.on_error == "fail":
            raise UserError(
                f"{self.file.shown_path} {where}{error.problem}: {error.remedy}, or skip such text with "
                "`on_error: skip`."
            )
        # A UTF-8 character has at most 4 bytes.
        problem_and_remedy = f"{error.problem}: {error.remedy}" if error.loses_text else error.problem
        beginning = bytes(text[: 4 * EXAMPLE_CHARACTERS]).decode("utf-8", "replace")
        message = problem_and_remedy if error.loses_text else ""
        self.dropped.add(error.reason, source, beginning or problem_and_remedy, message)


@contextmanager
def require_library(library: str) -> Iterator[None]:
    """Convert an ImportError into a `UserError`, for libraries that only some source formats need."""
    try:
        yield
    except ImportError:
        raise UserError(f"reading such files needs {library}: pip install 'megaptm[corpus]'.") from None
