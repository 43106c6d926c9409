"""Decoding of bytes: strict with the codec of a source, or by detection (`auto`)."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from data_pipeline.sources.bad import BadRecord, Unreadable, needed
from data_pipeline.sources.content import chunks
from data_pipeline.sources.source import InputFile

# UTF-32 first: its little-endian byte order mark starts with that of UTF-16.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SAMPLE_BYTES = 64 << 10
"""Size of the sample from which a codec is guessed, starting at the first line that is not UTF-8."""


@dataclass(frozen=True)
class Encoding:
    """Codec of a file, and the notes that its documents get."""

    codec: str
    """Name of a Python codec; `auto` detects the codec of each record."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """`encoding`, if the codec was detected and is not UTF-8."""

    @cached_property
    def has_plain_lines(self) -> bool:
        """Whether byte 10 ends each line and occurs in no other character, so that reading can start mid-file."""
        return self.codec == "auto" or "\n".encode(self.codec) == b"\n"

    @cached_property
    def is_tried_as_utf8(self) -> bool:
        """Whether `decode` tries UTF-8 first."""
        return self.codec in ("utf-8", "auto") or not self.has_plain_lines

    def plain_lines(self, data: Iterator[bytes]) -> Iterator[bytes]:
        """Return `data`, converted to UTF-8 if the bytes do not show where lines end; raises `Unreadable`."""
        return data if self.has_plain_lines else (text.encode() for text in texts(data, self.codec))

    def decode(self, data: bytes | bytearray) -> tuple[str, Mapping[str, Any]]:
        """Decode a record, and return its text and notes; raises `BadRecord`."""
        codec = "utf-8" if self.is_tried_as_utf8 else self.codec
        try:
            return data.decode(codec), self.notes
        except UnicodeDecodeError as error:
            guess = _guess(bytes(data)) if self.codec == "auto" else None
            if guess is None:
                raise BadRecord(*_not_in(codec, error, error.start)) from None
            return data.decode(guess), {"encoding": guess}


def encoding_of_records(file: InputFile) -> Encoding:
    """Return the encoding of a file of lines. `auto` detects each line's codec, unless the file has a byte order
    mark."""
    if file.source.encoding != "auto":
        return Encoding(codecs.lookup(file.source.encoding).name.removesuffix("-sig"))
    head = next(chunks(file))
    marked = next((codec for mark, codec in MARKS if head.startswith(mark)), None)
    return Encoding(marked, {"encoding": marked}) if marked else Encoding("auto")


def encoding_of_whole(file: InputFile) -> Encoding:
    """Return the encoding of a file that is one text. `auto` first reads the file to its end to check for UTF-8."""
    found = encoding_of_records(file)
    if found.codec != "auto":
        return found
    sample = _not_utf8(chunks(file))
    guess = _guess(sample) if sample else None
    return Encoding(guess, {"encoding": guess}) if guess else Encoding("utf-8")


def texts(data: Iterable[bytes], codec: str) -> Iterator[str]:
    """Decode chunks incrementally, without the byte order mark. A character may span two chunks. Raises
    `Unreadable`."""
    decoder = codecs.getincrementaldecoder(codec)()
    at, begun = 0, False
    for chunk in chain(data, (b"",)):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            raise Unreadable(*_not_in(codec, error, at - held + error.start)) from None
        at += len(chunk)
        if text:
            yield text if begun else text.removeprefix("\ufeff")
            begun = True


def _not_in(codec: str, error: UnicodeDecodeError, offset: int) -> tuple[str, str, str]:
    name = codec.upper() if codec.startswith("utf") else codec
    what = f"is not {name}: byte 0x{error.object[error.start]:02x} at offset {offset:,}"
    remedy = "convert it to UTF-8, or give its source `encoding: auto`" if codec == "utf-8" else f"convert it to {name}"
    return f"not {name}", what, remedy


def _not_utf8(data: Iterator[bytes]) -> bytes:
    """Return up to SAMPLE_BYTES, starting at the first line that is not UTF-8; empty if all of it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = b""
    for chunk in chain(data, (b"",)):
        try:
            decoder.decode(chunk, not chunk)
        except UnicodeDecodeError:
            sample = line + chunk + next(data, b"")
            start = _start_of_bad_line(sample)
            end = sample.rfind(b"\n", start, start + SAMPLE_BYTES) + 1
            return sample[start : end or start + SAMPLE_BYTES]
        line = (line + chunk)[-SAMPLE_BYTES:]
        line = line[line.rfind(b"\n") + 1 :]
    return b""


def _start_of_bad_line(sample: bytes) -> int:
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        return max(sample.rfind(b"\n", 0, error.start) + 1, error.start - SAMPLE_BYTES // 2)
    return 0


def _guess(data: bytes) -> str | None:
    """Return the most likely codec, or None."""
    with needed("charset-normalizer"):
        from charset_normalizer import from_bytes
    best = from_bytes(data).best()
    return best.encoding if best else None
