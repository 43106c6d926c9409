"""What `megaptm corpus images` is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from data_pipeline.images.look import ImageLimits

DIGITS = "digits"
"""In the place of a folder: the 1,797 handwritten digits, 8 x 8 pixels of grey, that scikit-learn brings."""


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """All that the bytes of a corpus of images depend on, besides its files."""

    source: str
    """Folder with a folder of images for each label, or with webdataset shards; or `DIGITS`."""
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share that is held out: of images, by a hash of their names; of given shards, whole ones, one at least."""
    held_out: str | None = None
    """Folder of what is held out, in the place of a share."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Which images are held out, and in which shard each is, follows from it."""
    shard_bytes: Annotated[int, Field(ge=1 << 10)] = 256 << 20
    """Of files in a shard that is written."""
    classes: str | None = None
    """Of given shards: text file with the names of labels 0, 1 ..., a line each. Absent: they are called by numbers."""
    label: str = "label"
    """Of given shards without `.cls`: the field of `.json` that has the number of the label."""
    smallest: Annotated[int, Field(ge=1)] = ImageLimits.smallest
    """Pixels of an image's shorter side, at least."""
    most_pixels: Annotated[int, Field(ge=1, le=1_000_000_000)] = ImageLimits.most_pixels
    """Of an image, at most."""
    stretched: Annotated[float, Field(ge=1)] = ImageLimits.stretched
    """The longer side is at most so many times the shorter."""
    check: Literal["pixels", "header"] = ImageLimits.check
    """Whether each image is decoded once, or only its header read."""

    @property
    def limits(self) -> ImageLimits:
        return ImageLimits(
            smallest=self.smallest, most_pixels=self.most_pixels, stretched=self.stretched, check=self.check
        )
