"""JSON values that are no lines: elements of an array, objects over many lines; one at a time, of files of any size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.sources.bad import BadRecord, Unreadable
from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.content import chunks
from data_pipeline.sources.encodings import Encoding, encoding_of_whole, texts
from data_pipeline.sources.lines import BOM, longest_line, too_long
from data_pipeline.sources.source import InputFile, Source

DECODER = json.JSONDecoder()
SPACE = re.compile(r"[ \t\r\n]*")
HEAD = 1 << 16
"""Bytes that tell what a file is."""
MARGIN = 16
"""A word (`false`) or a number that breaks off here may go on; a mistake farther from the end is one."""

Value = tuple[int, Any]
"""Offset of its first byte, and the value; or a `BadRecord`, behind which nothing can be found any more."""


def has_values(file: InputFile, encoding: Encoding) -> bool:
    """Whether it begins with an array, or with an object that its first line does not end; raises `Unreadable`.

    The latter is not asked where the name says that there are lines: the first of them may be damaged.
    """
    head = _head(encoding.plain_lines(chunks(file))).removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        return True
    line, end, _ = head.partition(b"\n")
    lines = without_compression(file.name).lower().endswith((".jsonl", ".ndjson"))
    if lines or not (head.startswith(b"{") and end):
        return False
    try:
        json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        # Of a line that is damaged the next begins with an object again; of one that goes on it does not.
        return not head[len(line) :].lstrip().startswith(b"{")
    return False


def values_of(file: InputFile) -> Iterator[Value]:
    """Values in order, those of arrays one by one; raises `Unreadable`."""
    codec = encoding_of_whole(file).codec
    marked = codec == "utf-8" and _head(chunks(file)).startswith(BOM)
    return _values(_Text(texts(chunks(file), codec), len(BOM) if marked else 0), file.source)


def _head(data: Iterator[bytes]) -> bytes:
    """The first HEAD bytes, however they come."""
    head = bytearray()
    try:
        while len(head) < HEAD and (chunk := next(data, b"")):
            head += chunk
    except Unreadable:
        if not head:  # what breaks off later is told when it is read
            raise
    return bytes(head[:HEAD])


class _Text:
    """The text from where it is looked at to where it was read to."""

    def __init__(self, source: Iterator[str], offset: int):
        self.source, self.offset = source, offset
        self.text, self.at = "", 0

    def more(self, size: int = 1) -> bool:
        """Read at least so many characters more; False at the end."""
        added = []
        while size > 0 and (text := next(self.source, None)) is not None:
            added.append(text)
            size -= len(text)
        self.text = "".join((self.text[self.at :], *added))
        self.at = 0
        return bool(added)

    def move(self, at: int) -> None:
        self.offset += len(self.text[self.at : at].encode())
        self.at = at

    def sign(self) -> str:
        """The next one that is no white space, which is passed over; nothing at the end."""
        while True:
            match = SPACE.match(self.text, self.at)
            assert match is not None
            self.move(match.end())
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""


def _values(text: _Text, source: Source) -> Iterator[Value]:
    inside, comma = False, False
    while sign := text.sign():
        if not inside and sign == "[":
            inside, comma = True, False
            text.move(text.at + 1)
        elif inside and sign == "]":
            inside = False
            text.move(text.at + 1)
        elif inside and comma:
            if sign != ",":
                yield text.offset, _not_json("a comma is missing")
                return
            comma = False
            text.move(text.at + 1)
        else:
            offset, value = text.offset, _value(text, source)
            yield offset, too_long(source) if text.offset - offset > longest_line(source) else value
            if isinstance(value, BadRecord):
                return
            comma = True
    if inside:
        yield text.offset, _not_json("the array does not end")


def _value(text: _Text, source: Source) -> Any:
    while True:
        try:
            value, end = DECODER.raw_decode(text.text, text.at)
        except json.JSONDecodeError as error:
            goes_on = error.pos >= len(text.text) - MARGIN or error.msg.startswith("Unterminated")
            if len(text.text) - text.at > longest_line(source):
                return too_long(source)
            # Twice as much each time: a long value is not looked at once for each of its chunks.
            if not goes_on or not text.more(len(text.text) - text.at):
                return _not_json(error.msg)
        except RecursionError:
            return too_deep()
        else:
            if end == len(text.text) and isinstance(value, int | float) and text.more():
                continue  # a number may have more digits
            text.move(end)
            return value


def _not_json(why: str) -> BadRecord:
    return BadRecord("not JSON", f"begins what is not valid JSON ({why})", "correct it")


def too_deep() -> BadRecord:
    return BadRecord("nested too deep", "is nested deeper than JSON is read here", "make it flat")
