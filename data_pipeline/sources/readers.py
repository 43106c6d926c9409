"""Files to documents. What cannot be read is counted under a reason, or stops the build when it was asked to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from data_pipeline.document import Document, Dropped
from data_pipeline.sources.files import CODE, JSON_LINES, InputFile
from megaptm.errors import UserError

OnError = Literal["skip", "fail"]


def read(file: InputFile, dropped: Dropped, on_error: OnError = "skip") -> Iterator[Document]:
    """The documents of a file, by its suffix: JSON lines hold one a line, any other file is one document."""
    bad = _Bad(file, dropped, on_error)
    try:
        yield from _read_json_lines(file, bad) if file.suffix in JSON_LINES else _read_text(file, bad)
    except OSError as error:
        bad("unreadable", file.name, f"cannot be read ({error.strerror})", "make it readable")


def _read_text(file: InputFile, bad: _Bad) -> Iterator[Document]:
    with open(file.path, "rb") as stream:
        content = stream.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad.utf8(content[error.start], error.start)
    else:
        yield Document(text, file.name, "code" if file.suffix in CODE else "prose")


def _read_json_lines(file: InputFile, bad: _Bad) -> Iterator[Document]:
    """One object a line with its text under `text`."""
    at = 0
    with open(file.path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            start, at = at, at + len(line)
            if not line.strip():
                continue
            source = f"{file.name}:{number}"
            try:
                record = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                bad.utf8(line[error.start], start + error.start, source)
                continue
            except ValueError:
                bad("not JSON", source, f"line {number} is not valid JSON", "correct it")
                continue
            text = record.get("text") if isinstance(record, dict) else None
            if not isinstance(text, str):
                bad("no text field", source, f"line {number} has no string in its field `text`", "add it")
            elif not _is_text(text):
                bad("not UTF-8", source, f"line {number} holds half a surrogate pair, which no text has", "correct it")
            else:
                yield Document(text, source)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Bad:
    """What happens to a document that cannot be read."""

    def __init__(self, file: InputFile, dropped: Dropped, on_error: OnError):
        self.file = file
        self.dropped = dropped
        self.on_error = on_error

    def __call__(self, reason: str, source: str, what: str, remedy: str) -> None:
        if self.on_error == "fail":
            raise UserError(f"{self.file.path} {what}: {remedy}, or leave such text out with `on_error: skip`.")
        self.dropped.add(reason, source)

    def utf8(self, byte: int, offset: int, source: str | None = None) -> None:
        what = f"is not UTF-8: byte 0x{byte:02x} at offset {offset:,}"
        self("not UTF-8", source or self.file.name, what, "convert it to UTF-8")
