"""Images: which label each has, what is behind patches that are hidden (ViT, arXiv:2010.11929), or which text is of
which (CLIP, arXiv:2103.00020)."""

# S places of a row, N patches, K patches asked about, T places of a text

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
"""An option: pixels of a side of an image."""
Area = Annotated[float, Option(gt=0, le=1)]
"""An option: a share of an image's area."""


@dataclass(frozen=True)
class ImageObjective(Objective):
    """A row is an image: its own place, and its patches."""

    size: Side = 224
    """Pixels of a side of the square that a model is shown: as many as its patches have."""
    crop: Literal["random", "square", "middle", "whole"] = "random"
    """What of an image is shown: a random part of it, somewhat stretched; the largest square, at a random place, or in
    the middle; or all, stretched to a square. Of held-out images it is not random."""
    area: tuple[Area, Area] = (0.05, 1.0)
    """Of `random`: the smallest and the largest share of an image's area."""
    flip: bool = True
    """Whether every second image is shown as in a mirror; held-out ones never are."""
    held_out_crop: Literal["middle", "whole"] | None = None
    """What is shown of held-out images, and of those that a model is asked about; absent: the whole where `crop` is
    that, and else the largest square in the middle."""
    inner: Area = 1.0
    """Of `middle` and `whole`: the share of each of their sides that is shown, in the middle."""
    resample: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = "bilinear"
    """By which interpolation, of Pillow's, what is shown is scaled to `size`."""

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
        """Who shows the same of images, and asks for their labels."""
        return ImageLabels(**{one.name: getattr(self, one.name) for one in fields(ImageObjective) if one.init})

    def raw_length(self, sequence: int) -> int:
        """One image a row."""
        return 1

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=1, most=1)

    def grid(self, sequence: int) -> int:
        """Patches of a side, where a row is one that `check` takes."""
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
        """Streams beside that of the image."""
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
        """The fields that say what is asked of an image of so many patches, and what is read beside it."""

    @abstractmethod
    def ask(self, read: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        """What is read of an image, which may be changed, and what is asked of it."""

    def _patches(self, document: DocumentSlice, grid: int, rng: np.random.Generator) -> np.ndarray:
        """uint8 [N, channels x pixels]"""
        content = next(iter(document.blobs.values()), None)
        if content is None:
            raise UserError("a document of the corpus has no image: build it with `megaptm corpus images`.")
        return self.patches(
            content, grid, rng, whose=f"the image of {document.place or 'a document'}", remedy=DAMAGED_FILE
        )

    def patches(self, content: bytes, grid: int, rng: np.random.Generator, *, whose: str, remedy: str) -> np.ndarray:
        """uint8 [N, channels x pixels] of the bytes of an image file, `grid` to a side; a `UserError` says whose it is
        and what to do where it is none."""
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
        except Exception as error:  # Pillow's decoders raise of all kinds on bytes that are not what a header says
            raise UserError(f"{whose} cannot be decoded ({error}): {remedy}.") from None
        if self.flip and rng.integers(2):
            shown = shown[:, ::-1]
        return to_patches(shown, self.size // grid)


@dataclass(frozen=True)
class ImageLabels(ImageObjective):
    """The label of an image, from what is said at its own place."""

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
    """The mean color of patches, most of which are hidden (arXiv:2010.11929, appendix B.1.2)."""

    rate: Rate = 0.5
    """Share of the patches that are asked about."""
    mask: Share = 0.8
    """Share of these in whose place there is nothing."""
    random: Share = 0.1
    """Share of these in whose place another patch of the image is shown; the rest are shown as they are."""

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
    """Which text of the batch is an image's own, and which image a text's (arXiv:2103.00020)."""

    crop: Literal["random", "square", "middle", "whole"] = "square"
    """As of others; the paper takes a random square of an image."""
    flip: bool = False
    """Whether every second image is shown as in a mirror: few texts are of both."""
    texts: RowLength = 77
    """Places of a text, what begins and ends it among them; a longer one is cut."""

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
"""What the fields of an image's text begin with."""


def shown_text(ids: np.ndarray, special: SpecialTokens, places: int) -> tuple[np.ndarray, int]:
    """int64 [T] of a text, as a model is shown it, and where it ends; padding behind is not seen, and needs no token of
    its own."""
    assert special.begin is not None
    assert special.end is not None
    kept = ids[: places - 2].astype(np.int64)
    pad = special.end if special.pad is None else special.pad
    return padded([np.array([special.begin]), kept, np.array([special.end])], places, pad), len(kept) + 1
