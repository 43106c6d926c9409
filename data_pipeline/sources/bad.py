"""Unreadable text: counted under a drop reason, or reported as a `UserError` that ends the build (`on_error`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from data_pipeline.document import EXAMPLE_CHARACTERS, TOOK_TOO_LONG, Dropped, is_of_document
from data_pipeline.sources.source import InputFile, OnError
from data_pipeline.time_limit import TookTooLong
from megaptm.credentials import in_brief
from megaptm.errors import UserError


class Unreadable(Exception):  # noqa: N818 # describes a file, and does not always end the build
    """A file that cannot be read, or whose remainder cannot be read."""

    def __init__(self, reason: str, what: str, remedy: str):
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.remedy = remedy


class BadRecord(Unreadable):
    """A record that cannot be read, in a file whose other records can."""


class LeftOut(Exception):  # noqa: N818
    """Content of an archive or a page that is not text. This is not an error."""


def bad_record(error: Exception) -> BadRecord:
    """Convert any exception about the current record to a `BadRecord`, so that no document ends a build that skips.

    Re-raises an exception that is not about the record: a mistake in the recipe, or a failing disk or server.
    """
    if isinstance(error, BadRecord):
        return error
    if isinstance(error, Unreadable) or not is_of_document(error):
        raise error
    if isinstance(error, TookTooLong):
        return BadRecord(TOOK_TOO_LONG, str(error), "take it out, or raise `max_seconds`")
    return BadRecord("cannot be read", f"cannot be read ({type(error).__name__}: {in_brief(error)})", "take it out")


class Bad:
    """Handler of text that cannot be read: drops and counts it, or ends the build."""

    def __init__(self, file: InputFile, dropped: Dropped, on_error: OnError, line_at: Callable[[int], int]):
        self.file = file
        self.dropped = dropped
        self.on_error = on_error
        self.line_at = line_at

    def whole(self, error: Unreadable) -> None:
        """Handle an error of the whole file or of its remainder."""
        self._tell(error, self.file.name, "", b"")

    def line(self, offset: int, error: BadRecord, text: bytes | bytearray = b"") -> None:
        """Handle an error of the record at a byte offset. An error that ends the build gives a line number instead of
        bytes."""
        where = f"line {self.line_at(offset):,} " if self.on_error == "fail" else ""
        self._tell(error, f"{self.file.name}@{offset}", where, text)

    def record(self, source: str, where: str, error: BadRecord, text: bytes | bytearray = b"") -> None:
        """Handle an error of a record that is located by something other than a line, such as `row 12`."""
        self._tell(error, source, f"{where} ", text)

    def left_out(self, reason: str, source: str) -> None:
        """Count content that is not text. It never ends the build, whatever `on_error` is."""
        self.dropped.add(reason, source)

    def _tell(self, error: Unreadable, source: str, where: str, text: bytes | bytearray) -> None:
        if self.on_error == "fail":
            raise UserError(
                f"{self.file.place} {where}{error.what}: {error.remedy}, or leave such text out with `on_error: skip`."
            )
        # A UTF-8 character has at most 4 bytes.
        said = f"{error.what}: {error.remedy}"
        beginning = bytes(text[: 4 * EXAMPLE_CHARACTERS]).decode("utf-8", "replace")
        self.dropped.add(error.reason, source, beginning or said, said)


@contextmanager
def needed(library: str) -> Iterator[None]:
    """Convert an ImportError into a `UserError`, for libraries that only some formats need."""
    try:
        yield
    except ImportError:
        raise UserError(f"{library} is needed to read such files: pip install 'megaptm[corpus]'.") from None
