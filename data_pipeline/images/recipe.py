"""Recipe of an image corpus, for `megaptm corpus images`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from data_pipeline.clean import CleaningStep
from data_pipeline.images.check import MOST_PIXELS, ImageLimits
from data_pipeline.images.region_shapes import DETECTOR as OF_SHAPES
from data_pipeline.images.text_steps import check_text_steps
from data_pipeline.recipe import TokenizerRecipe, plain_step
from megaptm.config.yamls import read_override
from megaptm.errors import UserError

DIGITS = "digits"
"""Source name: the 1,797 handwritten digits of scikit-learn, 8 x 8 grey pixels."""
SHAPES = "shapes"
"""Source name: 2,048 drawn images, 32 x 32 pixels, of four shapes in four colors."""
TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=49_408, specials="clip")
OF_TEXTS = ("text", "steps", "duplicates", "tokenizer", "max_tokens")
"""Settings that only apply to images with texts."""
CASED = TokenizerRecipe(kind="wordpiece", vocabulary=28_996, lowercase=False)
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
    max_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS)] = ImageLimits.max_pixels
    """Maximum pixels of an image."""
    max_aspect_ratio: Annotated[float, Field(ge=1)] = ImageLimits.max_aspect_ratio
    """Maximum ratio of the longer to the shorter side."""
    check: Literal["pixels", "header"] = ImageLimits.check
    """Decode each image once (`pixels`), or check only its header and its end (`header`)."""

    def for_manifest(self) -> dict[str, Any]:
        """Return the recipe for the manifest, without settings of absent texts and without an existing tokenizer, whose
        fingerprint the manifest has."""
        told = asdict(self)
        if self.steps:
            told["steps"] = [plain_step(step) for step in self.steps]
        else:  # manifests from before `steps` existed do not have it
            del told["steps"]
        if not self.regions:
            del told["regions"], told["detector"]
        if not self.texts:
            for name in ("texts", *OF_TEXTS):
                told.pop(name, None)
        elif self.tokenizer.folder is not None:
            del told["tokenizer"]
        return told

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
        usual = {name: type(self).__dataclass_fields__[name].default for name in OF_TEXTS}
        if not self.texts and (said := [name for name in OF_TEXTS if getattr(self, name) != usual[name]]):
            raise UserError(f"{said[0]} is of images with texts: add texts=true, or leave it out.")
        if self.texts and self.classes is not None:
            raise UserError("classes names labels, and images with texts have none: leave it out, or texts=true.")
        check_text_steps(self.steps)
        if self.duplicates == "near" and self.check == "header":
            raise UserError("duplicates=near looks at pixels, and check=header does not: leave out either.")
        if self.regions and not self.texts:
            raise UserError("regions (true) come with texts: say texts=true as well.")
        if self.regions and self.duplicates == "near":
            raise UserError("duplicates=near looks at pixels, and regions have none: say exact, or keep.")
        if self.detector is not None and not self.regions:
            raise UserError(f"detector ({[*self.detector]}) means nothing without regions=true: remove it.")


def read_image_settings(words: Sequence[str]) -> dict[str, Any]:
    """Convert words of a command to settings of an `ImageRecipe`. `tokenizer` may be a folder. Unset fields of a
    tokenizer are those of `TOKENIZER`, or of `CASED` with regions."""
    settings: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for word in words:
        values = dict(read_override(word).values)
        if isinstance(values.get("text"), bool):
            raise UserError("text is the name of a field; of images that come with texts say texts=true.")
        tokenizer = values.pop("tokenizer", None)
        if isinstance(tokenizer, str):
            told = {"folder": tokenizer}
        elif isinstance(tokenizer, dict):
            told |= tokenizer
        elif tokenizer is not None:
            settings["tokenizer"] = tokenizer
        settings |= values
    default = CASED if settings.get("regions") is True else TOKENIZER
    if told or (default is CASED and "tokenizer" not in settings):
        # The default special tokens only fit the default kind.
        usual = asdict(default) if told.get("kind", default.kind) == default.kind and "folder" not in told else {}
        settings["tokenizer"] = usual | told
    return settings
