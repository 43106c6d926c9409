"""Whether the end of an image's file is there, without decoding it: what was cut off would end a run that reads it."""

from __future__ import annotations

JPEG_MARKER, SCAN, ALONE = 0xFF, 0xDA, (0x01, *range(0xD0, 0xD8))
"""What begins a marker; the one whose pixels follow; those that have no length."""
JPEG_END, PNG_END = b"\xff\xd9", b"IEND\xaeB`\x82"
RIFF_HEADER = 8
"""Bytes of a WebP that its own length does not count."""


def ends_early(content: bytes, suffix: str | None) -> bool:
    """Of a JPEG, PNG or WebP whose header can be read; of others False. What stands behind the end says nothing."""
    if suffix == "jpg":
        # Pixels have no two bytes that are those of an end; what comes before them, as a small picture, may have.
        return content.find(JPEG_END, _pixels_of_jpeg(content)) < 0
    if suffix == "png":
        return PNG_END not in content
    if suffix == "webp":
        return len(content) < RIFF_HEADER + int.from_bytes(content[4:RIFF_HEADER], "little")
    return False


def _pixels_of_jpeg(content: bytes) -> int:
    """Where the first scan begins; the end of the file where there is none."""
    place = 2
    while place + 4 <= len(content):
        if content[place] != JPEG_MARKER:
            return place  # no marker stands here, as in some files: what is behind is looked through
        kind = content[place + 1]
        if kind == JPEG_MARKER:  # filling
            place += 1
        elif kind in ALONE:
            place += 2
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
            if kind == SCAN:
                return place
    return len(content)
