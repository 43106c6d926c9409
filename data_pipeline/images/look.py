"""Look at the bytes of an image before it is kept: can it be read, is it of a size to learn from, what is odd in it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from data_pipeline.images.ends import ends_early
from data_pipeline.images.region_hdf5 import SUFFIXES as HDF5
from data_pipeline.images.repeated import picture_sketch
from data_pipeline.images.suffixes import MEMBERS
from megaptm.objectives.pixels import FORMATS, SIXTEEN_BITS, SUFFIXES, open_image, rgb
from megaptm.objectives.region_files import SUFFIX, RefusedRegions, read_regions

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = frozenset(MEMBERS)
"""Suffixes of files of images that are looked at."""
OTHERS = frozenset(name.removeprefix(".") for name, suffix in MEMBERS.items() if suffix not in SUFFIXES)
"""Suffixes of images that no reader of webdataset knows: of files they become PNG, and in a given shard nothing can."""
SPELLINGS = {name.removeprefix("."): suffix for name, suffix in MEMBERS.items() if suffix in SUFFIXES}
"""Suffixes of images in public shards -> ours."""
MOST_BYTES = 64 << 20
"""Of a file: more are not read into memory."""
MOST_PIXELS = 178_956_970
"""Of an image: Pillow opens none that has more, when it is looked at and when it is trained on."""


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Which images are kept."""

    smallest: int = 8
    """Pixels of the shorter side, at least."""
    most_pixels: int = 64_000_000
    """Width times height, at most: what is larger is not decoded, so that memory stays bounded (200 MB)."""
    stretched: float = 20.0
    """The longer side is at most so many times the shorter."""
    check: Literal["pixels", "header"] = "pixels"
    """Whether each image is decoded once, which finds all that is damaged; or only its header is read, and whether its
    end is there."""
    sketch: bool = False
    """Whether it is also said what each looks like, where it is decoded."""
    detector: tuple[int, int] | None = None
    """Of files of regions, in the place of images: numbers of a region's features, and classes."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Of a corpus of such images, as its manifest lists them."""
        return ("tokens", *(SUFFIXES if self.detector is None else (SUFFIX,)))

    @property
    def names(self) -> frozenset[str]:
        """Suffixes of files that are looked at."""
        return NAMES if self.detector is None else frozenset({f".{SUFFIX}"})

    @property
    def packed(self) -> tuple[str, ...]:
        """Suffixes of files that have many images each."""
        return () if self.detector is None else HDF5

    @property
    def spellings(self) -> Mapping[str, str]:
        """Suffixes of images in public shards -> ours."""
        return SPELLINGS if self.detector is None else {SUFFIX: SUFFIX}


@dataclass(frozen=True)
class KeptImage:
    """An image that is kept."""

    suffix: str
    content: bytes
    width: int
    """In pixels; of a file of regions, as the height, their number."""
    height: int
    oddities: tuple[str, ...] = ()
    """What will be converted when it is read: `grey`, `CMYK`, `16 bits`, `animated: first picture` ..."""
    sketch: int = 0
    """What it looks like, where that was asked (`repeated.picture_sketch`)."""


@dataclass(frozen=True)
class RefusedImage:
    """One that is not, and why."""

    reason: str
    said: str = ""
    """More about this one."""


def look(content: bytes, limits: ImageLimits) -> KeptImage | RefusedImage:
    """What becomes of an image. Whatever is in the bytes, this returns; one image's pixels are held at most."""
    if len(content) > MOST_BYTES:
        return RefusedImage(f"more than {MOST_BYTES >> 20} MiB")
    if limits.detector is not None:
        return _look_at_regions(content, *limits.detector)
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError

    try:
        with open_image(content) as image:
            return _kept(image, content, limits)
    except UnidentifiedImageError:
        return RefusedImage("no image that can be read")
    except DecompressionBombError:
        return RefusedImage("too many pixels")
    except MemoryError:
        raise  # says nothing of the image, whose pixels are few enough
    except Exception as error:  # Pillow's decoders raise of all kinds on bytes that are not what a header says
        return RefusedImage("damaged", f"{type(error).__name__}: {error}"[:200])


def _look_at_regions(content: bytes, features: int, classes: int) -> KeptImage | RefusedImage:
    try:
        found = read_regions(content, features=features, classes=classes)
    except RefusedRegions as refused:
        return RefusedImage(refused.reason, refused.said)
    return KeptImage(SUFFIX, content, len(found), len(found))


def _kept(image: Image, content: bytes, limits: ImageLimits) -> KeptImage | RefusedImage:
    width, height = image.size
    if min(width, height) < limits.smallest:
        return RefusedImage("too small", f"{width} x {height}")
    if width * height > limits.most_pixels:
        return RefusedImage("too many pixels", f"{width:,} x {height:,}")
    if max(width, height) > limits.stretched * min(width, height):
        return RefusedImage("too long for its width", f"{width} x {height}")
    if image.mode == "F":
        return RefusedImage("pixels that are no colors", f"mode {image.mode}")
    oddities = _oddities(image)
    suffix, sketch = FORMATS.get(image.format or ""), 0
    if limits.check == "header" and ends_early(content, suffix):
        return RefusedImage("damaged", "the file ends early")
    if limits.check == "pixels" or suffix is None:
        picture = rgb(image)  # decodes all of it
        sketch = picture_sketch(picture) if limits.sketch else 0
        if suffix is None:
            # GIF, BMP, TIFF ...: readers of webdataset know the others.
            encoded = io.BytesIO()
            picture.save(encoded, "PNG")
            oddities = (*oddities, f"{image.format} to PNG")
            return KeptImage("png", encoded.getvalue(), width, height, oddities, sketch)
    return KeptImage(suffix, content, width, height, oddities, sketch)


def _oddities(image: Image) -> tuple[str, ...]:
    found = []
    if image.mode in SIXTEEN_BITS:
        found.append("16 bits")
    elif image.mode in ("1", "L", "LA"):
        found.append("grey")
    elif image.mode != "RGB":
        found.append({"P": "palette", "PA": "palette", "RGBA": "transparency"}.get(image.mode, image.mode))
    if image.format != "MPO" and _goes_on(image):
        found.append("animated: first picture")
    return tuple(found)


def _goes_on(image: Image) -> bool:
    """Whether there is a second picture. How many there are is not asked: of a TIFF of many that takes hours."""
    if image.format != "TIFF":
        return bool(getattr(image, "is_animated", False))
    try:
        image.seek(1)
    except EOFError:
        return False
    image.seek(0)
    return True
