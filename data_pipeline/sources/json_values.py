"""JSON values that are not lines: elements of an array, or objects over several lines.

Values are parsed one at a time, so files of any size can be read.
"""

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
"""Size of the prefix that identifies the layout of a file."""
MARGIN = 16
"""Characters. A parse error this close to the end of the buffer may be a word (`false`) or number that continues."""

Value = tuple[int, Any]
"""Offset of the first byte, and the value, or a `BadRecord`. Parsing cannot continue after a `BadRecord`."""


def has_values(file: InputFile, encoding: Encoding) -> bool:
    """Whether a file starts with an array, or with an object that spans several lines; raises `Unreadable`.

    Objects over several lines are not considered if the name ends in `.jsonl` or `.ndjson`: the first line may be
    damaged.
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
        # After a damaged line, the next line starts with an object again. After the start of a longer object it does
        # not.
        return not head[len(line) :].lstrip().startswith(b"{")
    return False


def values_of(file: InputFile) -> Iterator[Value]:
    """Yield values in order, and arrays element by element; raises `Unreadable`."""
    codec = encoding_of_whole(file).codec
    marked = codec == "utf-8" and _head(chunks(file)).startswith(BOM)
    return _values(_Text(texts(chunks(file), codec), len(BOM) if marked else 0), file.source)


def _head(data: Iterator[bytes]) -> bytes:
    """Return the first HEAD bytes, or fewer if the data end or become unreadable."""
    head = bytearray()
    try:
        while len(head) < HEAD and (chunk := next(data, b"")):
            head += chunk
    except Unreadable:
        if not head:  # a later error is reported when the file is read
            raise
    return bytes(head[:HEAD])


class _Text:
    """Buffer of text from the parse position to the end of what was read."""

    def __init__(self, source: Iterator[str], offset: int):
        self.source, self.offset = source, offset
        self.text, self.at = "", 0

    def more(self, size: int = 1) -> bool:
        """Read at least `size` more characters. Return False at the end."""
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
        """Skip white space and return the next character; empty at the end."""
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
            # The buffer doubles each time, so that a long value is not parsed again for each chunk.
            if not goes_on or not text.more(len(text.text) - text.at):
                return _not_json(error.msg)
        except RecursionError:
            return too_deep()
        else:
            if end == len(text.text) and isinstance(value, int | float) and text.more():
                continue  # the number may have more digits
            text.move(end)
            return value


def _not_json(why: str) -> BadRecord:
    return BadRecord("not JSON", f"begins what is not valid JSON ({why})", "correct it")


def too_deep() -> BadRecord:
    return BadRecord("nested too deep", "is nested deeper than JSON is read here", "make it flat")
