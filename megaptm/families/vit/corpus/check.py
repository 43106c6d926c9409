"""Check an image before it is kept: readability, size, and properties that need conversion."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from megaptm.families.vit.corpus.duplicates import appearance_sketch
from megaptm.families.vit.corpus.suffixes import MEMBERS
from megaptm.families.vit.corpus.truncation import is_truncated
from megaptm.families.vit.pixels import FORMATS, HIGH_BIT_DEPTH_MODES, SUFFIXES, open_image, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = frozenset(MEMBERS)
"""Suffixes of image files that are checked."""
CONVERTED_SUFFIXES = frozenset(name.removeprefix(".") for name, suffix in MEMBERS.items() if suffix not in SUFFIXES)
"""Image suffixes that webdataset readers do not support. Files are converted to PNG; in an existing shard they are
dropped."""
SPELLINGS = {name.removeprefix("."): suffix for name, suffix in MEMBERS.items() if suffix in SUFFIXES}
"""Suffixes of image files in a corpus, by the other suffixes that public shards use."""
MAX_BYTES = 64 << 20
"""Maximum bytes of an image file that is read into memory."""
MAX_PIXELS = 178_956_970
"""Maximum pixels of an image. Pillow refuses larger images, in the build and in training."""


class InvalidImageError(Exception):
    """Raised for a file that holds many images and cannot be read: a common reason, and details of this file."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.reason, self.details = reason, details


class PackedFiles(Protocol):
    """Interface of files that hold many images each."""

    suffixes: tuple[str, ...]

    def list_names(self, path: Path) -> list[str]:
        """Return the names of the images in a file that holds many; raise `InvalidImageError` if it is damaged."""
        ...

    def read(self, path: Path, name: str) -> bytes:
        """Return an image of a file that holds many; raise `InvalidImageError` if it is invalid."""
        ...


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Limits that an image must meet to be kept. Subclasses check other files in the place of images."""

    min_side: int = 8
    """Minimum pixels of an image's shorter side."""
    max_pixels: int = 64_000_000
    """Maximum width times height of an image in pixels. Larger images are not decoded, which bounds memory (200 MB)."""
    max_aspect_ratio: float = 20.0
    """Maximum ratio of an image's longer to its shorter side."""
    check: Literal["pixels", "header"] = "pixels"
    """Whether to decode each image once, which finds all damage (`pixels`), or check only its header and its end
    (`header`)."""
    sketch: bool = False
    """Whether to compute a sketch of each decoded image."""

    spellings: ClassVar[Mapping[str, str]] = SPELLINGS
    """Suffixes of images in a corpus, by the other suffixes that public shards use."""
    converted_suffixes: ClassVar[frozenset[str]] = CONVERTED_SUFFIXES
    """Suffixes of images in a public shard that are dropped."""
    packed: ClassVar[PackedFiles | None] = None
    """Kind of files that hold many images, if there are any."""
    size_name: ClassVar[str] = "pixels of their shorter side"
    """Size by which a report counts images: minimum of `ValidImage.width` and `height`."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields in the manifest of a corpus of such images."""
        return ("tokens", *SUFFIXES)

    @property
    def names(self) -> frozenset[str]:
        """Return the suffixes of image files that are checked."""
        return NAMES

    def check_content(self, content: bytes) -> ValidImage | InvalidImage:
        """Check the content of an image file. It never raises for invalid bytes."""
        from PIL import UnidentifiedImageError
        from PIL.Image import DecompressionBombError

        try:
            with open_image(content) as image:
                return _check_opened(image, content, self)
        except UnidentifiedImageError:
            return InvalidImage("not a readable image")
        except DecompressionBombError:
            return InvalidImage("too many pixels")
        except MemoryError:
            raise  # not caused by the image, whose number of pixels is limited
        except Exception as error:  # Pillow's decoders raise various exceptions on invalid bytes
            return InvalidImage("damaged", f"{type(error).__name__}: {error}"[:200])


@dataclass(frozen=True)
class ValidImage:
    """Image that passed the checks of an image corpus."""

    suffix: str
    content: bytes
    width: int
    """Width of the image in pixels, or another size (`ImageLimits.size_name`)."""
    height: int
    oddities: tuple[str, ...] = ()
    """Properties of the image that need conversion when it is read: `grey`, `CMYK`, `16 bits`, `animated: first
    picture` ..."""
    sketch: int = 0
    """Sketch of the appearance of the image, if requested (`duplicates.appearance_sketch`)."""


@dataclass(frozen=True)
class InvalidImage:
    """Image that is dropped, and the reason."""

    reason: str
    message: str = ""
    """Details about the dropped image."""


def check_image(content: bytes, limits: ImageLimits) -> ValidImage | InvalidImage:
    """Check an image: read its header, or decode it. Never raises for invalid bytes, and holds the pixels of at most
    one image in memory."""
    if len(content) > MAX_BYTES:
        return InvalidImage(f"more than {MAX_BYTES >> 20} MiB")
    return limits.check_content(content)


def _check_opened(image: Image, content: bytes, limits: ImageLimits) -> ValidImage | InvalidImage:
    width, height = image.size
    if min(width, height) < limits.min_side:
        return InvalidImage("too small", f"{width} x {height}")
    if width * height > limits.max_pixels:
        return InvalidImage("too many pixels", f"{width:,} x {height:,}")
    if max(width, height) > limits.max_aspect_ratio * min(width, height):
        return InvalidImage("aspect ratio too large", f"{width} x {height}")
    if image.mode == "F":
        return InvalidImage("unsupported pixel type", f"mode {image.mode}")
    oddities = _unusual_properties(image)
    suffix, sketch = FORMATS.get(image.format or ""), 0
    if limits.check == "header" and is_truncated(content, suffix):
        return InvalidImage("damaged", "the file is truncated")
    if limits.check == "pixels" or suffix is None:
        picture = to_rgb(image)  # decodes the full image
        sketch = appearance_sketch(picture) if limits.sketch else 0
        if suffix is None:
            # GIF, BMP, TIFF ...: webdataset readers support only the others.
            encoded = io.BytesIO()
            picture.save(encoded, "PNG")
            oddities = (*oddities, f"{image.format} to PNG")
            return ValidImage("png", encoded.getvalue(), width, height, oddities, sketch)
    return ValidImage(suffix, content, width, height, oddities, sketch)


def _unusual_properties(image: Image) -> tuple[str, ...]:
    names = []
    if image.mode in HIGH_BIT_DEPTH_MODES:
        names.append("16 bits")
    elif image.mode in ("1", "L", "LA"):
        names.append("grey")
    elif image.mode != "RGB":
        names.append({"P": "palette", "PA": "palette", "RGBA": "transparency"}.get(image.mode, image.mode))
    if image.format != "MPO" and _is_animated(image):
        names.append("animated: first picture")
    return tuple(names)


def _is_animated(image: Image) -> bool:
    """Whether an image file has a second picture. Counting pictures can take hours for a large TIFF."""
    if image.format != "TIFF":
        return bool(getattr(image, "is_animated", False))
    try:
        image.seek(1)
    except EOFError:
        return False
    image.seek(0)
    return True
