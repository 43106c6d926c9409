"""Decoding of bytes: strict with the codec of a source, or by detection (`auto`)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# fmt: off
GUESSED_CODECS = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "cp866",
    "koi8_r", "koi8_u", "iso8859_2", "iso8859_3", "iso8859_4", "iso8859_5", "iso8859_6", "iso8859_7", "iso8859_8",
    "iso8859_10", "iso8859_13", "iso8859_14", "iso8859_15", "iso8859_16", "mac_roman", "mac_cyrillic", "gb18030",
    "big5", "big5hkscs", "cp932", "shift_jis", "euc_jp", "iso2022_jp", "cp949", "euc_kr",
)
# fmt: on
"""Codecs that may be guessed: those of the web's Encoding Standard. Others, such as EBCDIC, fit almost any bytes."""
UTF_16 = ("utf_16_le", "utf_16_be")
"""Codecs that may be guessed for a file, but not for a line or a row: they turn any two letters into a Chinese one."""
NO_MARK = (
    "not UTF-8",
    "is probably UTF-16 without a byte order mark",
    "set `encoding: utf-16-le` or `utf-16-be` for its source, or convert it to UTF-8",
)
"""Reason, problem and remedy for UTF-16 that would be valid UTF-8 with NUL bytes."""
SURROGATE_PAIR = re.compile(rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]")
"""Character above U+FFFF as two surrogates of three bytes (CESU-8), as Java and Oracle write it."""


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
            if codec == "utf-8" and b"\0" in data and guess_utf16(data):
                raise UnreadableRecord(*NO_MARK)
            return data.decode(codec), self.notes
        except UnicodeDecodeError as error:
            guess = _guess_codec(bytes(data)) if self.codec == "auto" else None
            if guess is None:
                raise UnreadableRecord(*_decoding_problem(codec, error, error.start)) from None
            return data.decode(guess), {"encoding": guess}


def detect_record_encoding(file: InputFile) -> Encoding:
    """Detect the text encoding of a source file of lines. `auto` detects each line's codec, unless the file is UTF-16
    or has a byte order mark."""
    if file.source.encoding != "auto":
        return Encoding(codecs.lookup(file.source.encoding).name.removesuffix("-sig"))
    head = next(read_chunks(file))
    codec = next((codec for mark, codec in BYTE_ORDER_MARKS if head.startswith(mark)), None) or guess_utf16(head)
    return Encoding(codec, {"encoding": codec}) if codec else Encoding("auto")


def detect_file_encoding(file: InputFile) -> Encoding:
    """Detect the text encoding of a source file that is one text. `auto` first reads the file to its end to check for
    UTF-8."""
    encoding = detect_record_encoding(file)
    if encoding.codec != "auto":
        return encoding
    sample = _sample_not_utf8(read_chunks(file))
    guess = _guess_codec(sample, (*GUESSED_CODECS, *UTF_16)) if sample else None
    return Encoding(guess, {"encoding": guess}) if guess else Encoding("utf-8")


def decode_chunks(data: Iterable[bytes], codec: str) -> Iterator[str]:
    """Decode the chunks of a source file incrementally, without the byte order mark. A character may span two chunks.
    Raises `Unreadable`."""
    decoder = codecs.getincrementaldecoder(codec)()
    offset, has_started = 0, False
    for chunk in chain(data, (b"",)):
        if codec == "utf-8" and not has_started and guess_utf16(chunk):
            raise Unreadable(*NO_MARK)
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


def guess_utf16(data: bytes | bytearray) -> str | None:
    """Return the codec of UTF-16 without a byte order mark, whose ASCII characters have a NUL byte each; None for other
    data."""
    sample = data[:SAMPLE_BYTES]
    first, second = sample[::2].count(0), sample[1::2].count(0)
    if 3 * max(first, second) < len(sample) or 8 * min(first, second) > max(first, second) or not sample:
        return None
    return "utf-16-le" if second > first else "utf-16-be"


def is_damaged_utf8(data: bytes) -> bool:
    """Whether text that is not UTF-8 would be UTF-8 without a few wrong bytes, since most of its other characters are.

    Any other codec would garble all of these characters.
    """
    text = SURROGATE_PAIR.sub("\u20ac".encode(), data).decode("utf-8", "replace")
    replaced = text.count("\ufffd")
    return len(text) - len(text.encode("ascii", "ignore")) - replaced >= max(1, replaced)


def _guess_codec(data: bytes, candidates: Sequence[str] = GUESSED_CODECS) -> str | None:
    """Guess the codec of a sample that is not UTF-8; None if no codec is likely."""
    with require_library("charset-normalizer"):
        from charset_normalizer import from_bytes
    if is_damaged_utf8(data):
        return None
    best = from_bytes(data, cp_isolation=[*candidates]).best()
    return best.encoding if best else None
