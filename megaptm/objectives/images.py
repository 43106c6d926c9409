"""Image objectives: classification, masked patches (ViT, arXiv:2010.11929), and image-text contrast (CLIP,
arXiv:2103.00020)."""

# S sequence, N patches, K target patches, T text length

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field as Option

from megaptm.batch import CHANNELS, IMAGE, MASKED_PATCH, PATCH, BatchSpec, Field
from megaptm.errors import UserError
from megaptm.objectives.objective import (
    DAMAGED_FILE,
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    RowLength,
    RowWindow,
    Sample,
    SampleContext,
    Share,
    padded,
    refuse_lacking_tokens,
)
from megaptm.objectives.pixels import (
    SUFFIXES,
    CropBox,
    drawn_box,
    drawn_square,
    inner,
    mean_colors,
    middle,
    open_image,
    scaled,
    to_patches,
)
from megaptm.objectives.show_ask import check_shares
from megaptm.objectives.vocabulary import SpecialTokens

Side = Annotated[int, Option(ge=1, le=1 << 14)]
"""Option: side length of an image in pixels."""
Area = Annotated[float, Option(gt=0, le=1)]
"""Option: share of an image's area."""


@dataclass(frozen=True)
class ImageObjective(Objective):
    """Sample of an image: class token, then patches."""

    size: Side = 224
    """Side length of the model's square input in pixels."""
    crop: Literal["random", "square", "middle", "whole"] = "random"
    """Crop: a random part, with random aspect ratio; the largest square, at a random position or centered; or the whole
    image, scaled to a square. Validation images are never cropped at random."""
    area: tuple[Area, Area] = (0.05, 1.0)
    """For `random`: smallest and largest share of the image's area."""
    flip: bool = True
    """Whether every second image is flipped horizontally; never for validation."""
    held_out_crop: Literal["middle", "whole"] | None = None
    """Crop of validation images and prompts. None: `whole` if `crop` is, otherwise the largest centered square."""
    inner: Area = 1.0
    """For `middle` and `whole`: share of each side that is kept, centered."""
    resample: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = "bilinear"
    """Pillow's resampling filter for scaling to `size`."""

    unit = "document"
    blobs: ClassVar = SUFFIXES
    prompts = ()
    template: ClassVar = ("A", "A B")

    def __post_init__(self) -> None:
        if self.area[0] > self.area[1]:
            raise UserError(f"area ({self.area[0]:g}, {self.area[1]:g}) must rise: a smallest share, then a largest.")

    def held_out(self) -> Self:
        usual: Literal["middle", "whole"] = "whole" if self.crop == "whole" else "middle"
        return replace(self, crop=self.held_out_crop or usual, flip=False)

    def of_labels(self) -> ImageLabels:
        """Return a classification objective with the same image options."""
        return ImageLabels(**{one.name: getattr(self, one.name) for one in fields(ImageObjective) if one.init})

    def raw_length(self, sequence: int) -> int:
        """Return 1: one image per sample."""
        return 1

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=1, most=1)

    def grid(self, sequence: int) -> int:
        """Return the number of patches per side, for a sequence length that `check` accepts."""
        return max(1, isqrt(max(sequence - 1, 0)))

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        pixels = CHANNELS * (self.size // self.grid(sequence)) ** 2
        fields = {"tokens": Field((sequence,)), "patches": Field((sequence - 1, pixels), "uint8")}
        return BatchSpec({"": sequence} | self.beside, fields | self.asked(sequence - 1))

    def check(self, special: SpecialTokens, sequence: int) -> None:
        grid = self.grid(sequence)
        if grid**2 + 1 != sequence:
            raise UserError(
                f"data.sequence ({sequence}) must be one more than a square, for the patches of an image and itself: "
                f"{grid**2 + 1} or {(grid + 1) ** 2 + 1}."
            )
        if self.size % grid:
            raise UserError(
                f"objective {self.name}: data.sequence ({sequence}) is {grid} x {grid} patches and one place, and "
                f"{grid} does not divide size ({self.size}): give one that it divides."
            )

    @property
    def beside(self) -> dict[str, int]:
        """Batch fields besides those of the image."""
        return {}

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        [document] = piece
        tokens = np.full(context.sequence, PATCH)
        tokens[0] = IMAGE
        patches = self._patches(document, self.grid(context.sequence), context.rng)
        return self.ask({"tokens": tokens, "patches": patches}, document, context)

    @abstractmethod
    def asked(self, patches: int) -> dict[str, Field]:
        """Return the label fields for this number of patches, and further inputs."""

    @abstractmethod
    def ask(self, read: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        """Return inputs, possibly changed, and labels."""

    def _patches(self, document: DocumentSlice, grid: int, rng: np.random.Generator) -> np.ndarray:
        """Return the patches of a document's image, uint8 [N, channels x pixels]."""
        content = next(iter(document.blobs.values()), None)
        if content is None:
            raise UserError("a document of the corpus has no image: build it with `megaptm corpus images`.")
        return self.patches(
            content, grid, rng, whose=f"the image of {document.place or 'a document'}", remedy=DAMAGED_FILE
        )

    def patches(self, content: bytes, grid: int, rng: np.random.Generator, *, whose: str, remedy: str) -> np.ndarray:
        """Decode an image file to patches, uint8 [N, channels x pixels], `grid` per side. Raises `UserError` with
        `whose` and `remedy` if it is damaged."""
        try:
            image = open_image(content)
            if self.crop == "random":
                box = drawn_box(*image.size, self.area, rng)
            elif self.crop == "square":
                box = drawn_square(*image.size, rng)
            else:
                box = middle(*image.size) if self.crop == "middle" else CropBox(0, 0, *image.size)
                box = box if self.inner == 1 else inner(box, self.inner)
            shown = scaled(image, box, self.size, self.resample)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # Pillow's decoders raise any kind of exception on damaged files
            raise UserError(f"{whose} cannot be decoded ({error}): {remedy}.") from None
        if self.flip and rng.integers(2):
            shown = shown[:, ::-1]
        return to_patches(shown, self.size // grid)


@dataclass(frozen=True)
class ImageLabels(ImageObjective):
    """Image classification from the class token."""

    name = "image-labels"
    reads_labels = True
    losses: ClassVar = {"image-label": 1.0}

    @property
    def supervised(self) -> bool:
        return True

    def asked(self, patches: int) -> dict[str, Field]:
        return {"image_label": Field(())}

    def ask(self, read: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        return {**read, "image_label": np.array(document.tokens[0], dtype=np.int64)}


@dataclass(frozen=True)
class MaskedPatches(ImageObjective):
    """Mean color of patches, most of which are masked (arXiv:2010.11929, appendix B.1.2)."""

    rate: Rate = 0.5
    """Share of patches that are targets."""
    mask: Share = 0.8
    """Share of target patches that are masked."""
    random: Share = 0.1
    """Share of target patches that are replaced by another patch. The rest is unchanged."""

    name = "masked-patches"
    losses: ClassVar = {"masked-patch": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.mask, self.random)

    def asked(self, patches: int) -> dict[str, Field]:
        places = Field((max(1, round(self.rate * patches)),))
        return {"masked_positions": places, "patch_colors": places}

    def ask(self, read: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        tokens, patches, rng = read["tokens"], read["patches"], context.rng
        count = max(1, round(self.rate * len(patches)))
        asked = np.sort(rng.choice(len(patches), count, replace=False))
        kind = rng.random(count)
        tokens[1 + asked[kind < self.mask]] = MASKED_PATCH
        moved = asked[(kind >= self.mask) & (kind < self.mask + self.random)]
        shown = patches.copy()
        if len(patches) > 1:
            others = rng.integers(len(patches) - 1, size=len(moved))
            shown[moved] = patches[others + (others >= moved)]
        colors = mean_colors(patches[asked])
        return {"tokens": tokens, "patches": shown, "masked_positions": 1 + asked, "patch_colors": colors}


@dataclass(frozen=True)
class ImageText(ImageObjective):
    """Contrast of images and texts of a batch (arXiv:2103.00020)."""

    crop: Literal["random", "square", "middle", "whole"] = "square"
    """Crop; the paper uses a random square."""
    flip: bool = False
    """Whether every second image is flipped horizontally. Few texts describe both orientations."""
    texts: RowLength = 77
    """Length of a text, special tokens included. Longer texts are truncated."""

    name = "image-text"
    reads_labels = False
    losses: ClassVar = {"image-text": 1.0}
    needs = ("begin", "end")
    template: ClassVar = ("begin A end", "A B")

    @property
    def supervised(self) -> bool:
        return True

    @property
    def beside(self) -> dict[str, int]:
        return {TEXT: self.texts}

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        remedy = "`megaptm corpus images` of images with texts, or with tokenizer.specials=clip (roberta, albert)"
        refuse_lacking_tokens(self, special, remedy=remedy)

    def asked(self, patches: int) -> dict[str, Field]:
        return {f"{TEXT}tokens": Field((self.texts,)), "text_end": Field(())}

    def ask(self, read: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        tokens, end = shown_text(document.tokens, context.special, self.texts)
        return {**read, f"{TEXT}tokens": tokens, "text_end": np.array(end, dtype=np.int64)}


TEXT = "text_"
"""Prefix of the batch fields of an image's text."""


def shown_text(ids: np.ndarray, special: SpecialTokens, places: int) -> tuple[np.ndarray, int]:
    """Return the tokens of a text, int64 [T], and its end position. Padding is never attended to, so any id serves."""
    assert special.begin is not None
    assert special.end is not None
    kept = ids[: places - 2].astype(np.int64)
    pad = special.end if special.pad is None else special.pad
    return padded([np.array([special.begin]), kept, np.array([special.end])], places, pad), len(kept) + 1
