"""Recipe of an image corpus, for `megaptm corpus images`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from data_pipeline.clean import CleaningStep
from data_pipeline.recipe import LIST_READERS, TokenizerRecipe, step_for_manifest
from data_pipeline.settings import parse_settings
from megaptm.config.yamls import read_override
from megaptm.errors import UserError
from megaptm.families import contributions
from megaptm.families.vit.corpus.check import MAX_PIXELS, ImageLimits
from megaptm.families.vit.corpus.digits import write_digits
from megaptm.families.vit.corpus.shapes import write_shapes
from megaptm.families.vit.corpus.text_steps import check_text_steps
from megaptm.tokenizers import Tokenizer

DIGITS = "digits"
"""Source name: the 1,797 handwritten digits of scikit-learn, 8 x 8 grey pixels."""
SHAPES = "shapes"
"""Source name: 2,048 drawn images, 32 x 32 pixels, of four shapes in four colors."""
TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=49_408, specials="clip")
TEXT_SETTINGS = ("text", "steps", "duplicates", "tokenizer", "max_tokens")
"""Settings of an image recipe that only apply to images with texts."""
GENERATED: Mapping[str, Callable[..., None]] = {DIGITS: write_digits, SHAPES: write_shapes}
"""Functions that write the files of generated sources, by the name of the source."""


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """Everything that determines the content of an image corpus, except the files themselves."""

    source: str
    """Folder with a subfolder of images per label, folder of webdataset shards, `DIGITS` or `SHAPES`. With `texts`,
    folder names are ignored, and each image has a text of the same name beside it."""
    texts: bool = False
    """Whether images have texts: `.txt`, or a field of `.json`, with the same file name or shard key."""
    text: str = "caption"
    """Field of `.json` that holds an image's text if there is no `.txt`."""
    steps: tuple[CleaningStep, ...] = ()
    """Cleaning steps, applied to each text in this order. An image is dropped with its text."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Whether to keep repeated images with texts, or drop those with the same file (`exact`) or the same appearance
    (`near`)."""
    tokenizer: TokenizerRecipe = TOKENIZER
    """Tokenizer of the texts."""
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 75
    """Maximum tokens of an image's text; the rest is cut off. CLIP reads 75, plus a token before and after."""
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share of the validation split: of images, chosen by a hash of their names, or of complete existing shards. At
    least one."""
    held_out: str | None = None
    """Folder of the images of the validation split. It replaces the share `validation`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the validation split and of the assignment of images to shards."""
    shard_bytes: Annotated[int, Field(ge=1 << 10)] = 256 << 20
    """Target size of a shard: bytes of image files after which the next shard starts."""
    classes: str | None = None
    """Text file with the label names for existing shards, one per line. Default: labels are named by their numbers."""
    label: str = "label"
    """Field of `.json` that holds the label index in existing shards without `.cls`."""
    min_side: Annotated[int, Field(ge=1)] = ImageLimits.min_side
    """Minimum pixels of an image's shorter side."""
    max_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = ImageLimits.max_pixels
    """Maximum pixels of an image."""
    max_aspect_ratio: Annotated[float, Field(ge=1)] = ImageLimits.max_aspect_ratio
    """Maximum ratio of the longer to the shorter side."""
    check: Literal["pixels", "header"] = ImageLimits.check
    """Decode each image once (`pixels`), or check only its header and its end (`header`)."""

    has_pictures: ClassVar[bool] = True
    """Whether files are images, which the page of the build shows."""
    remedy: ClassVar[str] = "use other images"
    """Remedy in the error if no file is left after the checks."""

    def for_manifest(self) -> dict[str, Any]:
        """Return the image recipe for the manifest, without settings of absent texts and without an existing tokenizer,
        whose fingerprint the manifest has."""
        content = asdict(self)
        if self.steps:
            content["steps"] = [step_for_manifest(step) for step in self.steps]
        else:  # manifests from before `steps` existed do not have it
            del content["steps"]
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
        )

    def __post_init__(self) -> None:
        defaults = {name: type(self).__dataclass_fields__[name].default for name in TEXT_SETTINGS}
        if not self.texts and (text_only := [name for name in TEXT_SETTINGS if getattr(self, name) != defaults[name]]):
            raise UserError(f"{text_only[0]} applies to images with texts: add texts=true, or remove it.")
        if self.texts and self.classes is not None:
            raise UserError(
                "classes applies to images with labels, and texts=true to images with texts: remove one of them."
            )
        check_text_steps(self.steps)
        if self.duplicates == "near" and self.check == "header":
            raise UserError(
                "duplicates=near needs pixels, and check=header does not read them: remove one of the two settings."
            )

    def write_generated(self, source: str, folder: Path) -> None:
        """Write the files of a generated image source."""
        GENERATED[source](folder, texts=self.texts)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise `UserError` if a tokenizer does not suit the texts of images."""
        if tokenizer.special.begin is None or tokenizer.special.end is None:
            raise UserError(
                "a tokenizer of captions needs `begin` and `end` tokens: use tokenizer.specials=clip (roberta, "
                "albert), or the folder of a tokenizer that has them."
            )


def recipe_class(settings: Mapping[str, Any]) -> type[ImageRecipe]:
    """Return the class of image recipe that has these settings: `ImageRecipe`, or that of a family with further
    ones."""
    further = {name for name, value in settings.items() if value not in (None, False)} - _field_names(ImageRecipe)
    kinds: list[type[ImageRecipe]] = [*contributions("image_recipe", "RECIPE")] if further else []
    return next((kind for kind in kinds if further & _field_names(kind)), ImageRecipe)


def _field_names(kind: type[ImageRecipe]) -> set[str]:
    return {field.name for field in fields(kind)}


def read_image_recipe(source: str, words: Sequence[str]) -> ImageRecipe:
    """Return the recipe of an image corpus from its source and the `KEY=VALUE` arguments of a command."""
    settings = read_image_settings(words)
    kind = recipe_class(settings)
    ready = {"steps": LIST_READERS["steps"](settings["steps"], "images")} if "steps" in settings else {}
    return parse_settings(kind, {"source": source, **settings}, "images", ready)


def read_image_settings(words: Sequence[str]) -> dict[str, Any]:
    """Convert words of a command to settings of an image recipe. `tokenizer` may be a folder. Unset fields of a
    tokenizer are those of the recipe's default. Unknown settings that are false are dropped."""
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
    kind = recipe_class(settings)
    settings = {name: value for name, value in settings.items() if name in _field_names(kind) or value is not False}
    default = kind.tokenizer
    if content:
        # The default special tokens only fit the default kind.
        defaults = (
            asdict(default) if content.get("kind", default.kind) == default.kind and "folder" not in content else {}
        )
        settings["tokenizer"] = defaults | content
    return settings
