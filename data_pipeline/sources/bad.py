"""What cannot be read: counted under a reason, or one sentence that ends the build, as the recipe wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from data_pipeline.document import EXAMPLE_CHARACTERS, TOOK_TOO_LONG, Dropped, is_of_document
from data_pipeline.sources.source import InputFile, OnError
from data_pipeline.time_limit import TookTooLong
from megaptm.credentials import in_brief
from megaptm.errors import UserError


class Unreadable(Exception):  # noqa: N818  # what a file is, and not always an end
    """A file that cannot be read, or not any further."""

    def __init__(self, reason: str, what: str, remedy: str):
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.remedy = remedy


class BadRecord(Unreadable):
    """One record of a file, whose neighbors can be read."""


class LeftOut(Exception):  # noqa: N818
    """What archives and pages hold beside text, which is no mistake."""


def bad_record(error: Exception) -> BadRecord:
    """What an error says of the record at hand, whatever it is: no document ends a build that skips.

    Raises it again where it is not the record's: a mistake in the recipe, a disk or a server that gives up.
    """
    if isinstance(error, BadRecord):
        return error
    if isinstance(error, Unreadable) or not is_of_document(error):
        raise error
    if isinstance(error, TookTooLong):
        return BadRecord(TOOK_TOO_LONG, str(error), "take it out, or raise `max_seconds`")
    return BadRecord("cannot be read", f"cannot be read ({type(error).__name__}: {in_brief(error)})", "take it out")


class Bad:
    """What happens to text that cannot be read."""

    def __init__(self, file: InputFile, dropped: Dropped, on_error: OnError, line_at: Callable[[int], int]):
        self.file = file
        self.dropped = dropped
        self.on_error = on_error
        self.line_at = line_at

    def whole(self, error: Unreadable) -> None:
        """The file, or what is left of it."""
        self._tell(error, self.file.name, "", b"")

    def line(self, offset: int, error: BadRecord, text: bytes | bytearray = b"") -> None:
        """What begins at this byte. People count lines, so the sentence that ends a build does, too."""
        where = f"line {self.line_at(offset):,} " if self.on_error == "fail" else ""
        self._tell(error, f"{self.file.name}@{offset}", where, text)

    def record(self, source: str, where: str, error: BadRecord, text: bytes | bytearray = b"") -> None:
        """What a format numbers otherwise than by lines: `row 12`."""
        self._tell(error, source, f"{where} ", text)

    def left_out(self, reason: str, source: str) -> None:
        """What is no mistake, and no text either: counted, whatever the recipe wants of mistakes."""
        self.dropped.add(reason, source)

    def _tell(self, error: Unreadable, source: str, where: str, text: bytes | bytearray) -> None:
        if self.on_error == "fail":
            raise UserError(
                f"{self.file.place} {where}{error.what}: {error.remedy}, or leave such text out with `on_error: skip`."
            )
        # A character has 4 bytes at most.
        said = f"{error.what}: {error.remedy}"
        beginning = bytes(text[: 4 * EXAMPLE_CHARACTERS]).decode("utf-8", "replace")
        self.dropped.add(error.reason, source, beginning or said, said)


@contextmanager
def needed(library: str) -> Iterator[None]:
    """Around the import of what only some formats need."""
    try:
        yield
    except ImportError:
        raise UserError(f"{library} is needed to read such files: pip install 'megaptm[corpus]'.") from None
