"""Objectives of images: classification, and masked patches (ViT, arXiv:2010.11929)."""

# S sequence, N patches, K target patches

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field as Option

from megaptm.batch import BatchField, BatchSpec
from megaptm.errors import UserError
from megaptm.families.vit.pixels import (
    SUFFIXES,
    CropBox,
    center_square,
    crop_and_scale,
    mean_colors,
    open_image,
    random_crop,
    random_square,
    shrink_box,
    to_patches,
)
from megaptm.families.vit.spec import CHANNELS, IMAGE, MASKED_PATCH, PATCH
from megaptm.objectives.objective import (
    DAMAGED_FILE_REMEDY,
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    Sample,
    SampleContext,
    SequenceWindow,
    Share,
)
from megaptm.objectives.vocabulary import SpecialTokens

Side = Annotated[int, Option(ge=1, le=1 << 14)]
"""Option of an image objective: side length in pixels."""
Area = Annotated[float, Option(gt=0, le=1)]
"""Option of an image objective: share of an image's area."""


@dataclass(frozen=True)
class ImageObjective(Objective):
    """Base of image objectives. A sample is the class token, then patches."""

    size: Side = 224
    """Side length of the model's square input in pixels."""
    crop: Literal["random", "random-square", "center", "none"] = "random"
    """Crop of training images: `random`, a random part with random aspect ratio; `random-square` or `center`, the
    largest square at a random position or centered; or `none`, the full image scaled to a square. Validation images are
    never cropped at random."""
    area_range: tuple[Area, Area] = (0.05, 1.0)
    """Minimum and maximum share of an image's area that the crop `random` keeps."""
    flip: bool = True
    """Whether each training image is flipped horizontally with probability 1/2."""
    validation_crop: Literal["center", "none"] | None = None
    """Crop of validation images and prompts. Default: `none` if `crop` is `none`, otherwise `center`."""
    crop_fraction: Area = 1.0
    """Share of each side of an image that is kept, centered, for `center` and `none`."""
    resample: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = "bilinear"
    """Pillow's resampling filter for scaling to `size`."""

    unit = "document"
    blobs: ClassVar = SUFFIXES
    blob_corpus: ClassVar = ("images", "megaptm corpus images")
    annotation: ClassVar[Literal["label", "text"] | None] = None
    """Annotation that images must have in the corpus. None: the objective reads no annotation."""
    prompts = ()
    template: ClassVar = ("A", "A B")

    def __post_init__(self) -> None:
        if self.area_range[0] > self.area_range[1]:
            raise UserError(
                f"area_range ({self.area_range[0]:g}, {self.area_range[1]:g}) must be a minimum, then a maximum."
            )

    def for_validation(self) -> Self:
        default: Literal["center", "none"] = "none" if self.crop == "none" else "center"
        return replace(self, crop=self.validation_crop or default, flip=False)

    def as_image_labels(self) -> ImageLabels:
        """Return a classification objective with the same image options."""
        return ImageLabels(
            **{option.name: getattr(self, option.name) for option in fields(ImageObjective) if option.init}
        )

    def raw_length(self, sequence: int) -> int:
        """Return 1 raw token, because a sample has one image."""
        return 1

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return SequenceWindow(stride=1, max_document_length=1)

    def patches_per_side(self, sequence: int) -> int:
        """Return the number of patches per side, for a sequence length that `check` accepts."""
        return max(1, isqrt(max(sequence - 1, 0)))

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        pixels = CHANNELS * (self.size // self.patches_per_side(sequence)) ** 2
        fields = {
            "tokens": BatchField((sequence,)),
            "patches": BatchField((sequence - 1, pixels), "uint8", is_input=True),
        }
        return BatchSpec({"": sequence} | self.other_streams, fields | self.label_fields(sequence - 1))

    def check_corpus(self, corpus: str, stored: Collection[str], *, has_labels: bool) -> None:
        super().check_corpus(corpus, stored, has_labels=has_labels)
        annotation = "label" if has_labels else "text"
        if self.annotation not in (None, annotation):
            option = "texts=true" if self.annotation == "text" else "texts=false"
            raise UserError(
                f"{corpus} has images with a {annotation}, but objective {self.name} reads images with a "
                f"{self.annotation}: build a corpus with `megaptm corpus images ... {option}`."
            )

    def check(self, special: SpecialTokens, sequence: int) -> None:
        grid = self.patches_per_side(sequence)
        if grid**2 + 1 != sequence:
            raise UserError(
                f"data.sequence ({sequence}) must be a square number plus one, for the patches and the class token: "
                f"{grid**2 + 1} or {(grid + 1) ** 2 + 1}."
            )
        if self.size % grid:
            raise UserError(
                f"objective {self.name}: data.sequence ({sequence}) is {grid} x {grid} patches and the class token, "
                f"but size ({self.size}) is not a multiple of {grid}: change either."
            )

    @property
    def other_streams(self) -> dict[str, int]:
        """Return the sequence length of each further stack that an image objective feeds, such as a text encoder:
        prefix of its batch fields -> length."""
        return {}

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        [document] = piece
        tokens = np.full(context.sequence, PATCH)
        tokens[0] = IMAGE
        patches = self._read_patches(document, self.patches_per_side(context.sequence), context.rng)
        return self.add_labels({"tokens": tokens, "patches": patches}, document, context)

    @abstractmethod
    def label_fields(self, num_patches: int) -> dict[str, BatchField]:
        """Return the label fields of the objective's batch, and further inputs."""

    @abstractmethod
    def add_labels(self, inputs: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        """Return the inputs of an image's sample, possibly changed, and its labels."""

    def _read_patches(self, document: DocumentSlice, grid: int, rng: np.random.Generator) -> np.ndarray:
        """Return the patches of a document's image, uint8 [N, channels x pixels]."""
        content = next(iter(document.blobs.values()), None)
        if content is None:
            raise UserError("a document of the corpus has no image: build the corpus with `megaptm corpus images`.")
        return self.decode_patches(
            content, grid, rng, source=f"the image of {document.location or 'a document'}", remedy=DAMAGED_FILE_REMEDY
        )

    def decode_patches(
        self, content: bytes, grid: int, rng: np.random.Generator, *, source: str, remedy: str
    ) -> np.ndarray:
        """Decode an image file to patches, uint8 [N, channels x pixels], `grid` per side. Raises `UserError` with
        `source` and `remedy` if it is damaged."""
        try:
            image = open_image(content)
            if self.crop == "random":
                box = random_crop(*image.size, self.area_range, rng)
            elif self.crop == "random-square":
                box = random_square(*image.size, rng)
            else:
                box = center_square(*image.size) if self.crop == "center" else CropBox(0, 0, *image.size)
                box = box if self.crop_fraction == 1 else shrink_box(box, self.crop_fraction)
            shown = crop_and_scale(image, box, self.size, self.resample)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # Pillow's decoders raise any kind of exception on damaged files
            raise UserError(f"{source} cannot be decoded ({error}): {remedy}.") from None
        if self.flip and rng.integers(2):
            shown = shown[:, ::-1]
        return to_patches(shown, self.size // grid)


@dataclass(frozen=True)
class ImageLabels(ImageObjective):
    """Objective of image classification from the class token."""

    name = "image-labels"
    annotation = "label"
    losses: ClassVar = {"image-label": 1.0}

    @property
    def is_supervised(self) -> bool:
        return True

    def label_fields(self, num_patches: int) -> dict[str, BatchField]:
        return {"image_label": BatchField(())}

    def add_labels(self, inputs: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        return {**inputs, "image_label": np.array(document.tokens[0], dtype=np.int64)}


@dataclass(frozen=True)
class MaskedPatches(ImageObjective):
    """Objective of predicting the mean color of patches, most of which are masked (arXiv:2010.11929, appendix
    B.1.2)."""

    rate: Rate = 0.5
    """Masking rate of images: share of patches that are targets."""
    mask_patch_prob: Share = 0.8
    """Probability that a target patch is masked."""
    random_patch_prob: Share = 0.1
    """Probability that a target patch is replaced by another patch. Otherwise the patch is unchanged."""

    name = "masked-patches"
    losses: ClassVar = {"masked-patch": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (total := self.mask_patch_prob + self.random_patch_prob) > 1 + 1e-9:
            raise UserError(f"mask_patch_prob and random_patch_prob sum to {total:g}, more than 1: lower one.")

    def label_fields(self, num_patches: int) -> dict[str, BatchField]:
        targets = BatchField((max(1, round(self.rate * num_patches)),))
        return {"masked_positions": targets, "patch_colors": targets}

    def add_labels(self, inputs: Sample, document: DocumentSlice, context: SampleContext) -> Sample:
        tokens, patches, rng = inputs["tokens"], inputs["patches"], context.rng
        count = max(1, round(self.rate * len(patches)))
        targets = np.sort(rng.choice(len(patches), count, replace=False))
        uniforms = rng.random(count)
        tokens[1 + targets[uniforms < self.mask_patch_prob]] = MASKED_PATCH
        is_random = (uniforms >= self.mask_patch_prob) & (uniforms < self.mask_patch_prob + self.random_patch_prob)
        replaced = targets[is_random]
        shown = patches.copy()
        if len(patches) > 1:
            sources = rng.integers(len(patches) - 1, size=len(replaced))
            shown[replaced] = patches[sources + (sources >= replaced)]
        colors = mean_colors(patches[targets])
        return {"tokens": tokens, "patches": shown, "masked_positions": 1 + targets, "patch_colors": colors}


TASKS = {"image-labels": ImageLabels, "masked-patches": MaskedPatches}
OBJECTIVES = (ImageLabels(), MaskedPatches())
