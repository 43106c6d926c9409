"""Small pictures of images for the page of a build, of those that are left out, too, as far as they can be decoded."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field

from data_pipeline.document import EXAMPLES, Dropped
from data_pipeline.images.text_steps import RefusedText
from megaptm.objectives.pixels import open_image, rgb

SIDE = 96
"""Pixels of a picture's longer side."""
QUALITY = 70
"""Of its JPEG."""
MOST_PIXELS = 64_000_000
"""Of an image: of a larger one no picture is made, which would take its pixels into memory."""
MOST_BYTES = 64 << 20
"""Of its file."""


def thumbnail(content: bytes) -> str:
    """A picture of an image as base64 of a JPEG; nothing where there is none to be had, whatever is in the bytes."""
    if len(content) > MOST_BYTES:
        return ""
    try:
        with open_image(content) as image:
            if image.format == "JPEG":  # decoded at a scale near what is needed
                image.draft(image.mode, (2 * SIDE, 2 * SIDE))
            if image.width * image.height > MOST_PIXELS:
                return ""
            picture = rgb(image)
            picture.thumbnail((SIDE, SIDE))
            encoded = io.BytesIO()
            picture.save(encoded, "JPEG", quality=QUALITY)
    except MemoryError:
        raise
    except Exception:  # Pillow's decoders raise of all kinds; the build has said why it left the image out
        return ""
    return base64.b64encode(encoded.getvalue()).decode()


@dataclass
class DroppedImages(Dropped):
    """How many images were left out for each reason, with pictures of a few."""

    pictures: dict[str, list[str]] = field(default_factory=dict)
    """reason -> of each of `examples` a `thumbnail`, or nothing"""

    def add_text(self, refused: RefusedText, source: str, content: bytes) -> None:
        """Count an image whose text is the reason."""
        self.add_image(refused.reason, source, content, said=refused.said, text=refused.text)

    def add_image(self, reason: str, source: str, content: bytes, said: str = "", text: str = "") -> None:
        """Count an image, of which the bytes are at hand."""
        some = self._beside(reason)
        self.add(reason, source, text, said)
        if len(some) < EXAMPLES:
            some.append(thumbnail(content))

    def merge(self, other: Dropped) -> None:
        mine = {reason: self._beside(reason) for reason in other.examples}
        super().merge(other)
        if isinstance(other, DroppedImages):
            for reason, some in mine.items():
                some.extend(other._beside(reason)[: EXAMPLES - len(some)])

    def picture(self, reason: str, number: int) -> str:
        """Of an example."""
        return (self.pictures.get(reason, []) + [""] * EXAMPLES)[number]

    def _beside(self, reason: str) -> list[str]:
        """The pictures of a reason's examples, one for each."""
        some = self.pictures.setdefault(reason, [])
        some.extend([""] * (len(self.examples.get(reason, ())) - len(some)))
        return some
