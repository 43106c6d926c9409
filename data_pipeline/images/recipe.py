"""Recipe of an image corpus, for `megaptm corpus images`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from data_pipeline.clean import CleaningStep
from data_pipeline.images.check import MAX_PIXELS, ImageLimits
from data_pipeline.images.region_shapes import DETECTOR as OF_SHAPES
from data_pipeline.images.text_steps import check_text_steps
from data_pipeline.recipe import TokenizerRecipe, step_for_manifest
from megaptm.config.yamls import read_override
from megaptm.errors import UserError

DIGITS = "digits"
"""Source name: the 1,797 handwritten digits of scikit-learn, 8 x 8 grey pixels."""
SHAPES = "shapes"
"""Source name: 2,048 drawn images, 32 x 32 pixels, of four shapes in four colors."""
TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=49_408, specials="clip")
TEXT_SETTINGS = ("text", "steps", "duplicates", "tokenizer", "max_tokens")
"""Settings that only apply to images with texts."""
CASED_TOKENIZER = TokenizerRecipe(kind="wordpiece", vocabulary=28_996, lowercase=False)
"""Tokenizer for texts with image regions (UNITER)."""
DETECTOR = (2048, 1601)
"""Number of a region's features, and number of classes, in UNITER's published files."""


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """Everything that determines the content of an image corpus, except the files themselves."""

    source: str
    """Folder with a subfolder of images per label, folder of webdataset shards, `DIGITS` or `SHAPES`. With `texts`,
    folder names are ignored, and each image has a text of the same name beside it."""
    texts: bool = False
    """Whether images have texts: `.txt`, or a field of `.json`, with the same file name or shard key."""
    text: str = "caption"
    """Field of `.json` that holds the text if there is no `.txt`."""
    steps: tuple[CleaningStep, ...] = ()
    """Cleaning steps, applied to each text in this order. An image is dropped with its text."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Images with texts: keep repeated images, or drop those with the same file (`exact`) or the same appearance
    (`near`)."""
    regions: bool = False
    """Whether `texts` accompany files of detected regions (`.npz`, `objectives.region_files`; or HDF5) instead of
    images."""
    detector: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)]] | None = None
    """Number of a region's features, and number of classes. Other files are dropped. Default: 2,048 and 1,601, or the
    values of the drawn shapes."""
    tokenizer: TokenizerRecipe = TOKENIZER
    """Tokenizer of the texts."""
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 75
    """Maximum tokens of a text; the rest is cut off. CLIP reads 75, plus a token before and after."""
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share for the validation split: images, chosen by a hash of their names, or complete given shards. At least
    one."""
    held_out: str | None = None
    """Folder of the validation split, instead of a share."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the validation split and of the assignment of images to shards."""
    shard_bytes: Annotated[int, Field(ge=1 << 10)] = 256 << 20
    """Bytes of files in a shard that is written."""
    classes: str | None = None
    """Given shards: text file with the label names, one per line. Default: labels are named by their numbers."""
    label: str = "label"
    """Given shards without `.cls`: field of `.json` that holds the label index."""
    min_side: Annotated[int, Field(ge=1)] = ImageLimits.min_side
    """Minimum pixels of an image's shorter side."""
    max_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = ImageLimits.max_pixels
    """Maximum pixels of an image."""
    max_aspect_ratio: Annotated[float, Field(ge=1)] = ImageLimits.max_aspect_ratio
    """Maximum ratio of the longer to the shorter side."""
    check: Literal["pixels", "header"] = ImageLimits.check
    """Decode each image once (`pixels`), or check only its header and its end (`header`)."""

    def for_manifest(self) -> dict[str, Any]:
        """Return the recipe for the manifest, without settings of absent texts and without an existing tokenizer, whose
        fingerprint the manifest has."""
        content = asdict(self)
        if self.steps:
            content["steps"] = [step_for_manifest(step) for step in self.steps]
        else:  # manifests from before `steps` existed do not have it
            del content["steps"]
        if not self.regions:
            del content["regions"], content["detector"]
        if not self.texts:
            for name in ("texts", *TEXT_SETTINGS):
                content.pop(name, None)
        elif self.tokenizer.folder is not None:
            del content["tokenizer"]
        return content

    @property
    def limits(self) -> ImageLimits:
        return ImageLimits(
            min_side=self.min_side,
            max_pixels=self.max_pixels,
            max_aspect_ratio=self.max_aspect_ratio,
            check=self.check,
            sketch=self.duplicates == "near",
            detector=(self.detector or (OF_SHAPES if self.source == SHAPES else DETECTOR)) if self.regions else None,
        )

    def __post_init__(self) -> None:
        defaults = {name: type(self).__dataclass_fields__[name].default for name in TEXT_SETTINGS}
        if not self.texts and (text_only := [name for name in TEXT_SETTINGS if getattr(self, name) != defaults[name]]):
            raise UserError(f"{text_only[0]} applies to images with texts: add texts=true, or remove it.")
        if self.texts and self.classes is not None:
            raise UserError("classes names labels, but images with texts have none: remove classes or texts=true.")
        check_text_steps(self.steps)
        if self.duplicates == "near" and self.check == "header":
            raise UserError("duplicates=near needs pixels, which check=header does not read: remove one of them.")
        if self.regions and not self.texts:
            raise UserError("regions=true needs texts=true: add it.")
        if self.regions and self.duplicates == "near":
            raise UserError("duplicates=near needs pixels, which regions do not have: use exact or keep.")
        if self.detector is not None and not self.regions:
            raise UserError(f"detector ({[*self.detector]}) applies to regions: add regions=true, or remove detector.")


def read_image_settings(words: Sequence[str]) -> dict[str, Any]:
    """Convert words of a command to settings of an `ImageRecipe`. `tokenizer` may be a folder. Unset fields of a
    tokenizer are those of `TOKENIZER`, or of `CASED` with regions."""
    settings: dict[str, Any] = {}
    content: dict[str, Any] = {}
    for word in words:
        values = dict(read_override(word).values)
        if isinstance(values.get("text"), bool):
            raise UserError("text is the name of a field: for images with texts, set texts=true.")
        tokenizer = values.pop("tokenizer", None)
        if isinstance(tokenizer, str):
            content = {"folder": tokenizer}
        elif isinstance(tokenizer, dict):
            content |= tokenizer
        elif tokenizer is not None:
            settings["tokenizer"] = tokenizer
        settings |= values
    default = CASED_TOKENIZER if settings.get("regions") is True else TOKENIZER
    if content or (default is CASED_TOKENIZER and "tokenizer" not in settings):
        # The default special tokens only fit the default kind.
        defaults = (
            asdict(default) if content.get("kind", default.kind) == default.kind and "folder" not in content else {}
        )
        settings["tokenizer"] = defaults | content
    return settings
