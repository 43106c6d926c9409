"""Decoding of bytes: strict with the codec of a source, or by detection (`auto`)."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from data_pipeline.sources.content import read_chunks
from data_pipeline.sources.source import InputFile
from data_pipeline.sources.unreadable import Unreadable, UnreadableRecord, require_library

# UTF-32 first: its little-endian byte order mark starts with that of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SAMPLE_BYTES = 64 << 10
"""Size of the sample from which a codec is guessed, starting at the first line that is not UTF-8."""


@dataclass(frozen=True)
class Encoding:
    """Text encoding of a source file: its codec, and the notes that its documents get."""

    codec: str
    """Name of a Python codec; `auto` detects the codec of each record."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """`encoding`, if the codec was detected and is not UTF-8."""

    @cached_property
    def has_plain_lines(self) -> bool:
        """Whether byte 10 ends each line in this encoding and occurs in no other character, so that reading can start
        mid-file."""
        return self.codec == "auto" or "\n".encode(self.codec) == b"\n"

    @cached_property
    def is_tried_as_utf8(self) -> bool:
        """Whether `decode` tries UTF-8 before other codecs."""
        return self.codec in ("utf-8", "auto") or not self.has_plain_lines

    def plain_lines(self, data: Iterator[bytes]) -> Iterator[bytes]:
        """Return `data`, converted to UTF-8 if the bytes do not show where lines end; raises `Unreadable`."""
        return data if self.has_plain_lines else (text.encode() for text in decode_chunks(data, self.codec))

    def decode(self, data: bytes | bytearray) -> tuple[str, Mapping[str, Any]]:
        """Decode a record of a source file, and return its text and notes; raises `UnreadableRecord`."""
        codec = "utf-8" if self.is_tried_as_utf8 else self.codec
        try:
            return data.decode(codec), self.notes
        except UnicodeDecodeError as error:
            guess = _guess_codec(bytes(data)) if self.codec == "auto" else None
            if guess is None:
                raise UnreadableRecord(*_decoding_problem(codec, error, error.start)) from None
            return data.decode(guess), {"encoding": guess}


def detect_record_encoding(file: InputFile) -> Encoding:
    """Detect the text encoding of a source file of lines. `auto` detects each line's codec, unless the file has a byte
    order mark."""
    if file.source.encoding != "auto":
        return Encoding(codecs.lookup(file.source.encoding).name.removesuffix("-sig"))
    head = next(read_chunks(file))
    codec_of_mark = next((codec for mark, codec in BYTE_ORDER_MARKS if head.startswith(mark)), None)
    return Encoding(codec_of_mark, {"encoding": codec_of_mark}) if codec_of_mark else Encoding("auto")


def detect_file_encoding(file: InputFile) -> Encoding:
    """Detect the text encoding of a source file that is one text. `auto` first reads the file to its end to check for
    UTF-8."""
    encoding = detect_record_encoding(file)
    if encoding.codec != "auto":
        return encoding
    sample = _sample_not_utf8(read_chunks(file))
    guess = _guess_codec(sample) if sample else None
    return Encoding(guess, {"encoding": guess}) if guess else Encoding("utf-8")


def decode_chunks(data: Iterable[bytes], codec: str) -> Iterator[str]:
    """Decode the chunks of a source file incrementally, without the byte order mark. A character may span two chunks.
    Raises `Unreadable`."""
    decoder = codecs.getincrementaldecoder(codec)()
    offset, has_started = 0, False
    for chunk in chain(data, (b"",)):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            raise Unreadable(*_decoding_problem(codec, error, offset - held + error.start)) from None
        offset += len(chunk)
        if text:
            yield text if has_started else text.removeprefix("\ufeff")
            has_started = True


def _decoding_problem(codec: str, error: UnicodeDecodeError, offset: int) -> tuple[str, str, str]:
    name = codec.upper() if codec.startswith("utf") else codec
    problem = f"is not {name}: byte 0x{error.object[error.start]:02x} at offset {offset:,}"
    remedy = (
        "convert it to UTF-8, or set `encoding: auto` for its source" if codec == "utf-8" else f"convert it to {name}"
    )
    return f"not {name}", problem, remedy


def _sample_not_utf8(data: Iterator[bytes]) -> bytes:
    """Return up to SAMPLE_BYTES, starting at the first line that is not UTF-8; empty if all of it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = b""
    for chunk in chain(data, (b"",)):
        try:
            decoder.decode(chunk, not chunk)
        except UnicodeDecodeError:
            sample = line + chunk + next(data, b"")
            start = _start_of_invalid_line(sample)
            end = sample.rfind(b"\n", start, start + SAMPLE_BYTES) + 1
            return sample[start : end or start + SAMPLE_BYTES]
        line = (line + chunk)[-SAMPLE_BYTES:]
        line = line[line.rfind(b"\n") + 1 :]
    return b""


def _start_of_invalid_line(sample: bytes) -> int:
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        return max(sample.rfind(b"\n", 0, error.start) + 1, error.start - SAMPLE_BYTES // 2)
    return 0


def _guess_codec(data: bytes) -> str | None:
    """Guess the codec of a sample that is not UTF-8; None if no codec is likely."""
    with require_library("charset-normalizer"):
        from charset_normalizer import from_bytes
    best = from_bytes(data).best()
    return best.encoding if best else None
