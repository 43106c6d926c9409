"""JSON values that are not lines: elements of an array, or objects over several lines.

Values are parsed one at a time, so files of any size can be read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from data_pipeline.sources.compression import without_compression
from data_pipeline.sources.content import read_chunks
from data_pipeline.sources.encodings import Encoding, decode_chunks, detect_file_encoding
from data_pipeline.sources.lines import BOM, line_too_long_error, max_line_bytes
from data_pipeline.sources.source import InputFile, Source
from data_pipeline.sources.unreadable import Unreadable, UnreadableRecord


def parse_integer(digits: str) -> int | str:
    """Parse an integer of JSON. One of more digits than Python converts stays a string."""
    return int(digits) if len(digits) <= sys.int_info.default_max_str_digits else digits


DECODER = json.JSONDecoder(parse_int=parse_integer)
SPACE = re.compile(r"[ \t\r\n]*")
HEAD_BYTES = 1 << 16
"""Bytes at the start of a JSON file that identify its layout."""
MARGIN = 16
"""Maximum characters between a parse error and the end of the buffer if the cause may be a cut-off word or number."""

MAX_DEPTH = 500
"""Maximum nesting of a JSON value that becomes a note, or that Python's json parses. The limit of json itself depends
on its caller's stack, so that Ray's workers would drop other documents than this process."""

Value = tuple[int, Any]
"""JSON value with the offset of its first byte; or an `UnreadableRecord`, after which parsing cannot continue."""


def has_values(file: InputFile, encoding: Encoding) -> bool:
    """Whether a file of JSON starts with an array, or with an object that spans several lines; raises `Unreadable`.

    Objects over several lines are not considered if the name ends in `.jsonl` or `.ndjson`: the first line may be
    damaged.
    """
    head = _read_head(encoding.plain_lines(read_chunks(file))).removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        return True
    line, end, _ = head.partition(b"\n")
    is_json_lines = without_compression(file.name).lower().endswith((".jsonl", ".ndjson"))
    if is_json_lines or not (head.startswith(b"{") and end):
        return False
    try:
        json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        # After a damaged line, the next line starts with an object again. After the start of a longer object it does
        # not.
        return not head[len(line) :].lstrip().startswith(b"{")
    return False


def read_values(file: InputFile) -> Iterator[Value]:
    """Yield the JSON values of a file in order, and arrays element by element; raises `Unreadable`."""
    codec = detect_file_encoding(file).codec
    marked = codec == "utf-8" and _read_head(read_chunks(file)).startswith(BOM)
    return _parse_values(_TextBuffer(decode_chunks(read_chunks(file), codec), len(BOM) if marked else 0), file.source)


def _read_head(data: Iterator[bytes]) -> bytes:
    """Return the first HEAD bytes of a file of JSON, or fewer if the data end or become unreadable."""
    head = bytearray()
    try:
        while len(head) < HEAD_BYTES and (chunk := next(data, b"")):
            head += chunk
    except Unreadable:
        if not head:  # a later error is reported when the file is read
            raise
    return bytes(head[:HEAD_BYTES])


class _TextBuffer:
    """Buffer of text from the parse position to the end of what was read."""

    def __init__(self, source: Iterator[str], offset: int):
        self.source, self.offset = source, offset
        self.text, self.at = "", 0

    def read_more(self, size: int = 1) -> bool:
        """Read at least `size` more characters of the file of JSON. Return False at the end."""
        added = []
        while size > 0 and (text := next(self.source, None)) is not None:
            added.append(text)
            size -= len(text)
        self.text = "".join((self.text[self.at :], *added))
        self.at = 0
        return bool(added)

    def move_to(self, at: int) -> None:
        self.offset += len(self.text[self.at : at].encode())
        self.at = at

    def next_character(self) -> str:
        """Skip white space and return the next character; empty at the end."""
        while True:
            match = SPACE.match(self.text, self.at)
            assert match is not None
            self.move_to(match.end())
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.read_more():
                return ""


def _parse_values(text: _TextBuffer, source: Source) -> Iterator[Value]:
    in_array, comma = False, False
    while character := text.next_character():
        if not in_array and character == "[":
            in_array, comma = True, False
            text.move_to(text.at + 1)
        elif in_array and character == "]":
            in_array = False
            text.move_to(text.at + 1)
        elif in_array and comma:
            if character != ",":
                yield text.offset, _not_json_error("a comma is missing")
                return
            comma = False
            text.move_to(text.at + 1)
        else:
            offset, value = text.offset, _parse_value(text, source)
            yield offset, line_too_long_error(source) if text.offset - offset > max_line_bytes(source) else value
            if isinstance(value, UnreadableRecord):
                return
            comma = True
    if in_array:
        yield text.offset, _not_json_error("the array does not end")


def _parse_value(text: _TextBuffer, source: Source) -> Any:
    while True:
        try:
            value, end = DECODER.raw_decode(text.text, text.at)
        except json.JSONDecodeError as error:
            may_continue = error.pos >= len(text.text) - MARGIN or error.msg.startswith("Unterminated")
            if len(text.text) - text.at > max_line_bytes(source):
                return line_too_long_error(source)
            # The buffer doubles each time, so that a long value is not parsed again for each chunk.
            if not may_continue or not text.read_more(len(text.text) - text.at):
                return _not_json_error(error.msg)
        except RecursionError:
            return too_deep_error()
        else:
            if end == len(text.text) and isinstance(value, int | float) and text.read_more():
                continue  # the number may have more digits
            text.move_to(end)
            return value


def _not_json_error(reason: str) -> UnreadableRecord:
    problem = f"starts invalid JSON ({reason}), after which nothing is read"
    return UnreadableRecord("not JSON", problem, "correct it")


def refuse_deep_value(value: Any) -> None:
    """Raise `UnreadableRecord` for a parsed JSON value that is nested more than MAX_DEPTH deep."""
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        values = (outer.values() if type(outer) is dict else outer for outer in level)
        level = [inner for outer in values for inner in outer if type(inner) is list or type(inner) is dict]
        if not level:
            return
    raise too_deep_error()


def too_deep_error() -> UnreadableRecord:
    return UnreadableRecord("nested too deeply", "is nested too deeply for the JSON parser", "flatten it")
