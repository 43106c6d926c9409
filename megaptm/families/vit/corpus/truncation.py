"""Detect a truncated image file without decoding it, because a truncated image would end a run that reads it."""

from __future__ import annotations

JPEG_MARKER, SCAN, ALONE = 0xFF, 0xDA, (0x01, *range(0xD0, 0xD8))
"""JPEG markers: first byte of a marker; start of scan, which precedes the pixels; markers without length."""
JPEG_END, PNG_END = b"\xff\xd9", b"IEND\xaeB`\x82"
RIFF_HEADER = 8
"""Bytes of a WebP header that its length field does not count."""


def is_truncated(content: bytes, suffix: str | None) -> bool:
    """Whether a JPEG, PNG or WebP with a readable header is truncated; False for other formats. Trailing bytes are
    ignored."""
    if suffix == "jpg":
        # Compressed pixels never contain the end marker. Data before them, such as a thumbnail, may.
        return content.find(JPEG_END, _jpeg_scan_offset(content)) < 0
    if suffix == "png":
        return PNG_END not in content
    if suffix == "webp":
        return len(content) < RIFF_HEADER + int.from_bytes(content[4:RIFF_HEADER], "little")
    return False


def _jpeg_scan_offset(content: bytes) -> int:
    """Return the offset of the first scan of a JPEG (its compressed pixels); the length of the file if it has none."""
    offset = 2
    while offset + 4 <= len(content):
        if content[offset] != JPEG_MARKER:
            return offset  # no marker here, as in some files: search from here on
        kind = content[offset + 1]
        if kind == JPEG_MARKER:  # fill byte
            offset += 1
        elif kind in ALONE:
            offset += 2
        else:
            offset += 2 + int.from_bytes(content[offset + 2 : offset + 4], "big")
            if kind == SCAN:
                return offset
    return len(content)
