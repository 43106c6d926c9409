"""What `megaptm corpus images` is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from data_pipeline.clean import CleaningStep
from data_pipeline.images.look import MOST_PIXELS, ImageLimits
from data_pipeline.images.region_shapes import DETECTOR as OF_SHAPES
from data_pipeline.images.text_steps import check_text_steps
from data_pipeline.recipe import TokenizerRecipe, plain_step
from megaptm.config.yamls import read_override
from megaptm.errors import UserError

DIGITS = "digits"
"""In the place of a folder: the 1,797 handwritten digits, 8 x 8 pixels of grey, that scikit-learn brings."""
SHAPES = "shapes"
"""The same: 2,048 drawn images, 32 x 32 pixels, of four shapes in four colors."""
TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=49_408, specials="clip")
OF_TEXTS = ("text", "steps", "duplicates", "tokenizer", "longest")
"""Settings that only images with texts have."""
CASED = TokenizerRecipe(kind="wordpiece", vocabulary=28_996, lowercase=False)
"""Of texts with regions of images (UNITER)."""
DETECTOR = (2048, 1601)
"""Of UNITER's published files: numbers of a region's features, classes."""


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """All that the bytes of a corpus of images depend on, besides its files."""

    source: str
    """Folder with a folder of images for each label, or with webdataset shards; or `DIGITS`, `SHAPES`. With `texts`
    folders say nothing, and each image has a text of its name beside it."""
    texts: bool = False
    """Whether images come with texts: `.txt`, or a field of `.json`, of the same name, or key of a shard."""
    text: str = "caption"
    """The field of `.json` that has the text, where there is no `.txt`."""
    steps: tuple[CleaningStep, ...] = ()
    """What happens to each text, in this order, as in a corpus of text; what one leaves out goes with its image."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Of images with texts, those whose image was there before: kept, or left out where the file is the same, or where
    it looks the same."""
    regions: bool = False
    """Whether `texts` come with files of what a detector found in images (`.npz`, `objectives.region_files`; or
    HDF5), and not with images."""
    detector: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)]] | None = None
    """Numbers of a region's features, and classes; files of others are left out. Absent: 2,048 and 1,601, or what the
    drawn shapes have."""
    tokenizer: TokenizerRecipe = TOKENIZER
    """Of texts."""
    longest: Annotated[int, Field(ge=1, le=4096)] = 75
    """Tokens of a text, at most: what is beyond is cut off. CLIP reads so many, and one before and behind."""
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share that is held out: of images, by a hash of their names; of given shards, whole ones. One at least."""
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
    most_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS)] = ImageLimits.most_pixels
    """Of an image, at most."""
    stretched: Annotated[float, Field(ge=1)] = ImageLimits.stretched
    """The longer side is at most so many times the shorter."""
    check: Literal["pixels", "header"] = ImageLimits.check
    """Whether each image is decoded once, or only its header and its end are looked at."""

    def for_manifest(self) -> dict[str, Any]:
        """As the manifest keeps it; of texts nothing where there are none, and of a tokenizer that was given nothing:
        that is known by its fingerprint."""
        told = asdict(self)
        if self.steps:
            told["steps"] = [plain_step(step) for step in self.steps]
        else:  # as before there were any
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
            smallest=self.smallest,
            most_pixels=self.most_pixels,
            stretched=self.stretched,
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
    """Settings of an `ImageRecipe` as words of a command: `tokenizer` may be the folder of one that exists, and what is
    not said of another is as in `TOKENIZER`, or `CASED` where there are regions."""
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
        # Of another kind special tokens are as usual for it.
        usual = asdict(default) if told.get("kind", default.kind) == default.kind and "folder" not in told else {}
        settings["tokenizer"] = usual | told
    return settings
