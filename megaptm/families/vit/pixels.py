"""Image files to patches: decode, crop, scale, split. Pillow is loaded on first use.

All random numbers come from the given generator, so that a sample is a function of its index.
"""

# H rows and W columns of an image, N patches, C channels, P pixels of a patch

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from megaptm.errors import UserError
from megaptm.families.vit.spec import CHANNELS

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = ("jpg", "png", "webp")
"""Suffixes of image files in a shard of an image corpus."""
FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}
"""Suffixes of image files by Pillow's image format. MPO is a JPEG with a second image, written by some cameras."""
OPENED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Image formats that are opened, by Pillow's names; MPO counts as JPEG. Other formats of Pillow are no images, or have
unmaintained decoders; EPS is a program that Pillow passes to Ghostscript."""
HIGH_BIT_DEPTH_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Pillow's modes of gray images with more than 8 bits. Pillow's own conversion clips them at 255."""
RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's resampling filters in the order of their numbers."""
TRIES = 10
"""Number of attempts of the published random crop, after which the center crop is used."""
ASPECT_RANGE = (3 / 4, 4 / 3)
"""Minimum and maximum aspect ratio of the published random crop, width to height."""


class CropBox(NamedTuple):
    """Rectangle of an image to crop, in pixels."""

    x0: float
    y0: float
    x1: float
    y1: float


def open_image(content: bytes) -> Image:
    """Open an image and read its header, but no pixels. Raises Pillow's errors if it is damaged or not in
    `OPENED_FORMATS`."""
    image: Image = _import_pillow().open(io.BytesIO(content), formats=OPENED_FORMATS)
    return image


def to_rgb(image: Image) -> Image:
    """Decode the first image of a file as 8-bit RGB, from gray, palette, CMYK and 16-bit images too. Transparency is
    dropped."""
    if image.mode in HIGH_BIT_DEPTH_MODES:
        levels = np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8
        return _import_pillow().fromarray(levels.astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "RGB":
        image.load()
        return image  # converting would copy
    return image.convert("RGB")


def center_square(width: int, height: int) -> CropBox:
    """Return the largest centered square of an image."""
    side = min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return CropBox(left, upper, left + side, upper + side)


def random_square(width: int, height: int, rng: np.random.Generator) -> CropBox:
    """Return the largest square of an image at a random position (arXiv:2103.00020, 2.4)."""
    side = min(width, height)
    left, upper = float(rng.integers(width - side + 1)), float(rng.integers(height - side + 1))
    return CropBox(left, upper, left + side, upper + side)


def random_crop(width: int, height: int, area: tuple[float, float], rng: np.random.Generator) -> CropBox:
    """Return a random crop of an image with area share and aspect ratio in the given ranges (arXiv:1409.4842, section
    6; released code of ViT); the center crop if none fits."""
    for _ in range(TRIES):
        share = rng.uniform(*area) * width * height
        ratio = math.exp(rng.uniform(math.log(ASPECT_RANGE[0]), math.log(ASPECT_RANGE[1])))
        across, down = round(math.sqrt(share * ratio)), round(math.sqrt(share / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = rng.integers(width - across + 1), rng.integers(height - down + 1)
            return CropBox(float(left), float(upper), float(left + across), float(upper + down))
    return center_square(width, height)


def shrink_box(box: CropBox, share: float) -> CropBox:
    """Shrink the crop of an image to its center with this share of each side."""
    edge = (1 - share) / 2
    across, down = edge * (box.x1 - box.x0), edge * (box.y1 - box.y0)
    return CropBox(box.x0 + across, box.y0 + down, box.x1 - across, box.y1 - down)


def crop_and_scale(image: Image, box: CropBox, size: int, resample: str = "bilinear") -> np.ndarray:
    """Crop and scale an image to uint8 [size, size, C], with a filter of `RESAMPLINGS`.

    A JPEG is decoded at the smallest of its own scales (1/2, 1/4, 1/8) that has enough pixels: large images then cost a
    fraction of time and memory.
    """
    width, height = image.size
    if image.format in ("JPEG", "MPO"):
        shrink = min((box.x1 - box.x0) / size, (box.y1 - box.y0) / size)
        if shrink >= 2:
            image.draft("RGB" if image.mode == "YCbCr" else image.mode, (int(width / shrink), int(height / shrink)))
    across, down = image.size[0] / width, image.size[1] / height
    part = (box.x0 * across, box.y0 * down, box.x1 * across, box.y1 * down)
    filter_ = _import_pillow().Resampling[resample.upper()]
    return np.asarray(to_rgb(image).resize((size, size), filter_, box=part))


def to_patches(image_HWC: np.ndarray, side: int) -> np.ndarray:
    """Divide an image into patches [N, C P] of `side` x `side` pixels in row order; channels are consecutive."""
    rows, columns = (length // side for length in image_HWC.shape[:2])
    cut = image_HWC.reshape(rows, side, columns, side, CHANNELS)
    return cut.transpose(0, 2, 4, 1, 3).reshape(rows * columns, CHANNELS * side**2)


def from_patches(patches_NP: np.ndarray, side: int) -> np.ndarray:
    """Join patches to the square image [H, W, C]."""
    grid = math.isqrt(len(patches_NP))
    cut = patches_NP.reshape(grid, grid, CHANNELS, side, side)
    return cut.transpose(0, 3, 1, 4, 2).reshape(grid * side, grid * side, CHANNELS)


def mean_colors(patches_NP: np.ndarray) -> np.ndarray:
    """Return the mean color of each patch, 3 bits per channel, red first, int64 [N]."""
    means = patches_NP.reshape(len(patches_NP), CHANNELS, -1).mean(-1)
    red, green, blue = (means / 32).astype(np.int64).T
    return red << 6 | green << 3 | blue


def _import_pillow() -> Any:
    """Return Pillow's image module."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UserError("images need Pillow, which is not installed: run `pip install 'megaptm[images]'`.") from None
    # Large images are refused by their number of pixels; Pillow's warning would only clutter the terminal.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image
