"""Recipe of a corpus of texts and regions of images, for `megaptm corpus images ... regions=true`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from data_pipeline.recipe import TokenizerRecipe
from megaptm.errors import UserError
from megaptm.families.uniter import DETECTOR
from megaptm.families.uniter.corpus.region_hdf5 import SUFFIXES, list_region_images, read_image_regions
from megaptm.families.uniter.corpus.region_shapes import DETECTOR as SHAPES_DETECTOR
from megaptm.families.uniter.corpus.region_shapes import write_region_shapes
from megaptm.families.uniter.region_files import SUFFIX, RegionError, read_regions
from megaptm.families.vit.corpus.check import ImageLimits, InvalidImage, InvalidImageError, ValidImage
from megaptm.families.vit.corpus.recipe import DIGITS, SHAPES, ImageRecipe
from megaptm.tokenizers import Tokenizer

CASED = TokenizerRecipe(kind="wordpiece", vocabulary=28_996, lowercase=False)


@contextmanager
def _errors_of_regions() -> Iterator[None]:
    try:
        yield
    except RegionError as refused:
        raise InvalidImageError(refused.reason, refused.details) from None


class PackedRegions:
    """Source of a corpus: HDF5 files with the image regions of many images."""

    suffixes: tuple[str, ...] = SUFFIXES

    def list_names(self, path: Path) -> list[str]:
        with _errors_of_regions():
            return list_region_images(path)

    def read(self, path: Path, name: str) -> bytes:
        with _errors_of_regions():
            return read_image_regions(path, name)


@dataclass(frozen=True, kw_only=True)
class RegionLimits(ImageLimits):
    """Limits that a file of image regions must meet to be kept. Its width and height are the number of regions."""

    detector: tuple[int, int]
    """Sizes of the detector: number of a region's features, and number of classes."""

    spellings: ClassVar = {SUFFIX: SUFFIX}
    converted_suffixes: ClassVar = frozenset[str]()
    packed: ClassVar = PackedRegions()
    size_name: ClassVar = "number of regions"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("tokens", SUFFIX)

    @property
    def names(self) -> frozenset[str]:
        return frozenset({f".{SUFFIX}"})

    def check_content(self, content: bytes) -> ValidImage | InvalidImage:
        features, classes = self.detector
        try:
            regions = read_regions(content, features=features, classes=classes)
        except RegionError as refused:
            return InvalidImage(refused.reason, refused.details)
        return ValidImage(SUFFIX, content, len(regions), len(regions))


@dataclass(frozen=True, kw_only=True)
class RegionRecipe(ImageRecipe):
    """Everything that determines the content of a corpus of texts and regions, except the files themselves."""

    regions: bool = False
    """Whether `texts` accompany files of detected regions (`.npz`, `families.uniter.region_files`; or HDF5) instead of
    images."""
    detector: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)]] | None = None
    """Number of a region's features, and number of classes. Other files are dropped. Default: 2,048 and 1,601, or the
    values of the drawn shapes."""
    tokenizer: TokenizerRecipe = CASED

    has_pictures: ClassVar = False
    remedy: ClassVar = "use .npz files of detected regions"

    def for_manifest(self) -> dict[str, Any]:
        content = super().for_manifest()
        # Manifests list both settings after `duplicates`.
        names = [name for name in content if name not in ("regions", "detector")]
        at = names.index("duplicates") + 1
        return {name: content[name] for name in (*names[:at], "regions", "detector", *names[at:])}

    @property
    def limits(self) -> RegionLimits:
        default = SHAPES_DETECTOR if self.source == SHAPES else DETECTOR
        return RegionLimits(**vars(super().limits), detector=self.detector or default)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.detector is not None and not self.regions:
            raise UserError(f"detector ({[*self.detector]}) applies to regions: add regions=true, or remove detector.")
        if not self.texts:
            raise UserError("regions=true needs texts=true: add it.")
        if self.duplicates == "near":
            raise UserError("duplicates=near needs pixels, which regions do not have: use exact or keep.")

    def write_generated(self, source: str, folder: Path) -> None:
        if source == DIGITS:
            raise UserError(f"{source} have no regions: use {SHAPES}, or a folder of detected regions.")
        write_region_shapes(folder)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        if None in (tokenizer.special.cls, tokenizer.special.sep, tokenizer.special.mask):
            raise UserError(
                "a tokenizer of texts with image regions needs `cls`, `sep` and `mask` tokens: use "
                "tokenizer.kind=wordpiece, or the folder of a tokenizer that has them."
            )


RECIPE = RegionRecipe
