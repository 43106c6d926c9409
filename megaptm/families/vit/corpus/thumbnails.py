"""Thumbnails of images for the report page, including dropped images that can be decoded."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field

from data_pipeline.document import EXAMPLES, DropCounts
from megaptm.families.vit.corpus.text_steps import InvalidTextError
from megaptm.families.vit.pixels import open_image, to_rgb

SIDE = 96
"""Longer side of a thumbnail in pixels."""
QUALITY = 70
"""JPEG quality of a thumbnail."""
MAX_PIXELS = 64_000_000
"""Maximum pixels of an image with a thumbnail. Larger images get no thumbnail, because decoding would take too much
memory."""
MAX_BYTES = 64 << 20
"""Maximum bytes of an image file with a thumbnail."""


def make_thumbnail(content: bytes) -> str:
    """Return a thumbnail as base64 of a JPEG; empty if the image cannot be decoded. Never raises for invalid bytes."""
    if len(content) > MAX_BYTES:
        return ""
    try:
        with open_image(content) as image:
            if image.format == "JPEG":  # decode at a reduced scale
                image.draft(image.mode, (2 * SIDE, 2 * SIDE))
            if image.width * image.height > MAX_PIXELS:
                return ""
            picture = to_rgb(image)
            picture.thumbnail((SIDE, SIDE))
            encoded = io.BytesIO()
            picture.save(encoded, "JPEG", quality=QUALITY)
    except MemoryError:
        raise
    except Exception:  # Pillow's decoders raise various exceptions; the drop reason was already counted
        return ""
    return base64.b64encode(encoded.getvalue()).decode()


@dataclass
class DroppedImages(DropCounts):
    """Number of dropped images per reason, with thumbnails of the examples."""

    pictures: dict[str, list[str]] = field(default_factory=dict)
    """Pictures of dropped images by reason: a `thumbnail` or an empty string for each entry of `examples`."""

    def add_text(self, refused: InvalidTextError, source: str, content: bytes) -> None:
        """Count an image that is dropped because of its text."""
        self.add_image(refused.reason, source, content, message=refused.message, text=refused.text)

    def add_image(self, reason: str, source: str, content: bytes, message: str = "", text: str = "") -> None:
        """Count a dropped image whose bytes are available."""
        thumbnails = self._thumbnails_of(reason)
        self.add(reason, source, text, message)
        if len(thumbnails) < EXAMPLES:
            thumbnails.append(make_thumbnail(content))

    def merge(self, other: DropCounts) -> None:
        own = {reason: self._thumbnails_of(reason) for reason in other.examples}
        super().merge(other)
        if isinstance(other, DroppedImages):
            for reason, thumbnails in own.items():
                thumbnails.extend(other._thumbnails_of(reason)[: EXAMPLES - len(thumbnails)])

    def example_thumbnail(self, reason: str, number: int) -> str:
        """Return the thumbnail of an example of a dropped image."""
        return (self.pictures.get(reason, []) + [""] * EXAMPLES)[number]

    def _thumbnails_of(self, reason: str) -> list[str]:
        """Return the list of thumbnails for a drop reason, padded to one per example."""
        thumbnails = self.pictures.setdefault(reason, [])
        thumbnails.extend([""] * (len(self.examples.get(reason, ())) - len(thumbnails)))
        return thumbnails
