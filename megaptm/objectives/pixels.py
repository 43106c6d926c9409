"""From the bytes of an image file to patches of pixels: read, cropped, scaled, cut. Pillow is loaded when there is one.

All that is drawn comes from the generator handed in, so that a sample is a function of its number.
"""

# H rows and W columns of an image, N patches, C channels, P pixels of a patch

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from megaptm.batch import CHANNELS
from megaptm.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = ("jpg", "png", "webp")
"""Of files of images in a shard."""
FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}
"""Pillow's name of a format -> its suffix; MPO is what some cameras write, a JPEG with another behind it."""
OPENED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are opened, by Pillow's names; MPO comes with JPEG. Of the others that it knows some are no images, some
have decoders that nobody looks after, and EPS is a program that it hands to Ghostscript."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Pillow's modes of grey with more than eight bits, whose own conversion cuts off all above 255."""
RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Of Pillow, each at the place of its number there."""
TRIES = 10
"""Of the published crop: after so many that do not fit the middle is taken."""
ASPECT = (3 / 4, 4 / 3)
"""Of the published crop, its width to its height."""


class CropBox(NamedTuple):
    """A rectangle of an image, in pixels."""

    left: float
    upper: float
    right: float
    lower: float


def open_image(content: bytes) -> Image:
    """An image whose header was read, and no pixel yet. Raises what Pillow raises of a file that is none, or none
    of `OPENED`."""
    image: Image = _pillow().open(io.BytesIO(content), formats=OPENED)
    return image


def rgb(image: Image) -> Image:
    """The first picture of a file in 8 bits of red, green and blue: of grey, palettes, CMYK and 16 bits too; what is
    transparent has the color that the file gives it."""
    if image.mode in SIXTEEN_BITS:
        levels = np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8
        return _pillow().fromarray(levels.astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "RGB":
        image.load()
        return image  # to convert it would be to copy it
    return image.convert("RGB")


def middle(width: int, height: int) -> CropBox:
    """The largest square in the middle."""
    side = min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return CropBox(left, upper, left + side, upper + side)


def drawn_square(width: int, height: int, rng: np.random.Generator) -> CropBox:
    """The largest square, at some place (arXiv:2103.00020, 2.4)."""
    side = min(width, height)
    left, upper = float(rng.integers(width - side + 1)), float(rng.integers(height - side + 1))
    return CropBox(left, upper, left + side, upper + side)


def drawn_box(width: int, height: int, area: tuple[float, float], rng: np.random.Generator) -> CropBox:
    """Some share of an image, at some place, somewhat stretched (arXiv:1409.4842, section 6; the released code of ViT);
    the middle where no such was found."""
    for _ in range(TRIES):
        share = rng.uniform(*area) * width * height
        ratio = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        across, down = round(math.sqrt(share * ratio)), round(math.sqrt(share / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = rng.integers(width - across + 1), rng.integers(height - down + 1)
            return CropBox(float(left), float(upper), float(left + across), float(upper + down))
    return middle(width, height)


def inner(box: CropBox, share: float) -> CropBox:
    """What lies in the middle of a rectangle: this share of each side."""
    edge = (1 - share) / 2
    across, down = edge * (box.right - box.left), edge * (box.lower - box.upper)
    return CropBox(box.left + across, box.upper + down, box.right - across, box.lower - down)


def scaled(image: Image, box: CropBox, size: int, resample: str = "bilinear") -> np.ndarray:
    """uint8 [size, size, C]: a part of an image, by an interpolation of `RESAMPLINGS`.

    A JPEG is decoded at the smallest of its own scales (1/2, 1/4, 1/8) at which the part has as many pixels: large
    ones then cost a fraction of time and memory.
    """
    width, height = image.size
    if image.format in ("JPEG", "MPO"):
        shrink = min((box.right - box.left) / size, (box.lower - box.upper) / size)
        if shrink >= 2:
            image.draft("RGB" if image.mode == "YCbCr" else image.mode, (int(width / shrink), int(height / shrink)))
    across, down = image.size[0] / width, image.size[1] / height
    part = (box.left * across, box.upper * down, box.right * across, box.lower * down)
    how = _pillow().Resampling[resample.upper()]
    return np.asarray(rgb(image).resize((size, size), how, box=part))


def to_patches(image_HWC: np.ndarray, side: int) -> np.ndarray:
    """[N, C P]: patches of `side` x `side` pixels, row by row of the image; of each the channels one after another."""
    rows, columns = (length // side for length in image_HWC.shape[:2])
    cut = image_HWC.reshape(rows, side, columns, side, CHANNELS)
    return cut.transpose(0, 2, 4, 1, 3).reshape(rows * columns, CHANNELS * side**2)


def from_patches(patches_NP: np.ndarray, side: int) -> np.ndarray:
    """[H, W, C]: the square image of such patches."""
    grid = math.isqrt(len(patches_NP))
    cut = patches_NP.reshape(grid, grid, CHANNELS, side, side)
    return cut.transpose(0, 3, 1, 4, 2).reshape(grid * side, grid * side, CHANNELS)


def mean_colors(patches_NP: np.ndarray) -> np.ndarray:
    """int64 [N]: the mean color of patches, 3 bits a channel, red first."""
    means = patches_NP.reshape(len(patches_NP), CHANNELS, -1).mean(-1)
    red, green, blue = (means / 32).astype(np.int64).T
    return red << 6 | green << 3 | blue


def _pillow() -> Any:
    """Its module of images."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UserError("images are read by Pillow: install it with `pip install 'megaptm[images]'`.") from None
    # What is too large is refused by its number of pixels, and not by a line on the terminal.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image
