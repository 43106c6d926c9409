"""Objectives on a text and regions of its image (UNITER, arXiv:1909.11740), and their mixture."""

# S sequence, T positions of the text, R regions, F features, C classes, A target positions

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field as Option

from megaptm.batch import IGNORED, BatchField, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.families.uniter.region_files import SUFFIX, RegionError, Regions, read_regions
from megaptm.families.uniter.spec import MASKED_REGION, NUM_BOX_VALUES, REGION
from megaptm.objectives.composed import CONSTANT_ONE, StepValue, Task
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.masked import TEXT_FIELDS
from megaptm.objectives.masking import MASKING_STRATEGIES
from megaptm.objectives.mixtures import NamedMixture, share_of_third
from megaptm.objectives.named_file import FILE
from megaptm.objectives.objective import (
    DAMAGED_FILE_REMEDY,
    DocumentSlice,
    Neighbors,
    Objective,
    Piece,
    Rate,
    Sample,
    SampleContext,
    SequenceWindow,
    Share,
    documents_and_positions,
    pad_pieces,
    refuse_missing_tokens,
)
from megaptm.objectives.replacements import REPLACEMENT_STRATEGIES, check_replacement_shares, masked_tokens_in_order
from megaptm.objectives.vocabulary import SpecialTokens

RETRIEVED = ("images", "texts", "captions")
"""Kinds of retrieved neighbors of an image: images of the same content, texts on the same topic, and captions of other
images on almost the same topic."""
RETRIEVAL_READER = "megaptm.families.uniter.retrieved:RetrievedDocuments"
"""Class that reads files of retrieved neighbors (`Neighbors.reader`)."""
RegionNumber = Annotated[int, Option(ge=1, le=1 << 14)]
"""Option of an objective: number of regions, or of detector outputs per region."""


def region_fields(regions: int, features: int) -> dict[str, BatchField]:
    """Return the batch fields of image regions."""
    return {
        "region_features": BatchField((regions, features), "float16", is_input=True, is_appended=True),
        "region_boxes": BatchField((regions, NUM_BOX_VALUES), "float32", is_input=True, is_appended=True),
    }


@dataclass(frozen=True)
class RegionObjective(Objective):
    """Base of UNITER's objectives. A sample is a text, `cls` A `sep`, followed by the regions of its image."""

    regions: RegionNumber = 100
    """Number of region positions, after those of the text. Further regions are dropped."""
    features: RegionNumber = 2048
    """Feature width of a region."""
    classes: Annotated[int, Option(ge=2, le=1 << 14)] = 1601
    """Number of detector classes, background first."""
    min_confidence: Share = 0.2
    """Minimum detector confidence; the first `min_regions` regions are kept regardless."""
    min_regions: RegionNumber = 10
    """Minimum number of regions, if the image has as many."""

    unit = "document"
    blobs: ClassVar = (SUFFIX,)
    blob_corpus: ClassVar = ("images", "megaptm corpus images")
    needs_own_batches: ClassVar[bool] = True
    num_segments = 2
    required_tokens = ("pad", "cls", "sep", "mask")
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def __post_init__(self) -> None:
        """Raise `UserError` if options of an objective on regions contradict each other."""

    @property
    def is_supervised(self) -> bool:
        return True

    def raw_length(self, sequence: int) -> int:
        """Return 1 raw token, because a sample has one image."""
        return 1

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return SequenceWindow(stride=1, max_document_length=1)

    def text_length(self, sequence: int) -> int:
        """Return T, the number of text positions."""
        return max(sequence - self.regions, 0)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        inputs = batch_fields((sequence,), *TEXT_FIELDS) | region_fields(self.regions, self.features)
        return BatchSpec({"": sequence}, inputs | self.label_fields(sequence))

    def check_corpus(self, corpus: str, stored: Collection[str], *, has_labels: bool) -> None:
        if SUFFIX not in stored:
            raise UserError(
                f"{corpus} has no regions of images, which objective {self.name} reads: build a corpus with `megaptm "
                "corpus images ... texts=true regions=true`."
            )

    def check(self, special: SpecialTokens, sequence: int) -> None:
        remedy = "`megaptm corpus images ... regions=true`, or with tokenizer.kind=wordpiece"
        refuse_missing_tokens(self, special, remedy=remedy)
        if (words := self.text_length(sequence)) < 3:
            raise UserError(
                f"data.sequence ({sequence}) leaves {words} positions for a text before {self.regions} regions: raise "
                f"it, or lower the option `regions` of objective {self.name}."
            )

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        own, *added = piece
        other = next((part for part in added if part.other_segment), own)
        special, words = context.special, self.text_length(context.sequence)
        text = np.concatenate([[special.cls], own.tokens[: words - 2].astype(np.int64), [special.sep]])
        regions = self._read_regions(other, self.num_own_regions(piece))
        assert special.pad is not None
        sample: Sample = {
            "tokens": pad_pieces([text], context.sequence, special.pad),
            "segments": (np.arange(context.sequence) >= words).astype(np.int64),
            "positions": np.arange(context.sequence),
            "document_ids": documents_and_positions([len(text)], context.sequence)[0],
            "region_features": np.zeros((self.regions, self.features), dtype=np.float16),
            "region_boxes": np.zeros((self.regions, NUM_BOX_VALUES), dtype=np.float32),
        }
        sample["tokens"][words:] = REGION
        sample["document_ids"][words : words + len(regions)] = 1
        sample["region_features"][: len(regions)] = regions.features
        sample["region_boxes"][: len(regions)] = regions.boxes
        return self.add_labels(sample, text, regions, context)

    def num_own_regions(self, piece: Sequence[DocumentSlice]) -> int:
        """Return the number of region positions for the document's own image."""
        return self.regions

    @property
    def single_pair(self) -> Self:
        """Return the objective for samples of a text with its own image only."""
        return self

    @abstractmethod
    def label_fields(self, sequence: int) -> dict[str, BatchField]:
        """Return the label fields of the objective's batch."""

    @abstractmethod
    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        """Return the inputs of a sample with regions, possibly changed, and its labels."""

    def _read_regions(self, document: DocumentSlice, max_regions: int) -> Regions:
        """Return the regions of a document's image, at most `max_regions`."""
        content = document.blobs.get(SUFFIX)
        if content is None:
            raise UserError(
                "a document of the corpus has no regions: build it with `megaptm corpus images regions=true`."
            )
        try:
            regions = read_regions(content, features=self.features, classes=self.classes)
        except RegionError as error:
            location = document.location or "a document"
            raise UserError(
                f"the regions of {location} cannot be read ({error}): set `features` and `classes` of objective "
                f"{self.name} to those of the detector, or, if the file is damaged, {DAMAGED_FILE_REMEDY}."
            ) from None
        num_confident = int((regions.confidence > self.min_confidence).sum())
        return regions.first(min(max(num_confident, self.min_regions), max_regions))


@dataclass(frozen=True)
class RegionMaskedLM(RegionObjective):
    """Objective MLM: masked tokens of a text, with its image visible."""

    rate: Rate = 0.15
    """Masking rate: share of tokens that are masked and predicted."""
    mask_token_prob: Share = 0.8
    """Probability that a masked token is replaced by the mask token."""
    random_token_prob: Share = 0.1
    """Probability that a masked token is replaced by a random token. Otherwise the token is unchanged."""

    name = "image-text-masked-lm"
    losses: ClassVar = {"mlm": 1.0}
    prompts = ("masks",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_replacement_shares(self.mask_token_prob, self.random_token_prob)

    def max_predictions(self, sequence: int) -> int:
        """Return A, the maximum number of target positions."""
        return max(1, round(self.rate * self.text_length(sequence)))

    def label_fields(self, sequence: int) -> dict[str, BatchField]:
        return batch_fields((self.max_predictions(sequence),), "masked_positions", "labels")

    def noise(self, text: np.ndarray, max_masked: int) -> Denoise:
        """Mask a text of an image with up to `max_masked` masked tokens."""
        hide, show = (
            MASKING_STRATEGIES["tokens"](rate=self.rate, max_masked=max_masked),
            REPLACEMENT_STRATEGIES["tokens"](
                mask_token_prob=self.mask_token_prob, random_token_prob=self.random_token_prob
            ),
        )
        return Denoise(hide=hide, show=show, ask=masked_tokens_in_order)

    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        max_masked = self.max_predictions(context.sequence)
        hidden, shown, labels = self.noise(text, max_masked)(text, context.special, context.rng)
        sample["tokens"][: len(text)] = shown
        return {
            **sample,
            "masked_positions": pad_pieces([np.flatnonzero(hidden)], max_masked, 0),
            "labels": pad_pieces([labels], max_masked, IGNORED),
        }


@dataclass(frozen=True)
class MaskedRegions(RegionObjective):
    """Objectives MRFR, MRC and MRC-kl: masked regions, with the text visible."""

    target: Literal["features", "class", "distribution"] = "features"
    """Prediction target of masked regions: their `features`; the detector's most likely `class`, background excluded;
    or its class `distribution`."""
    rate: Rate = 0.15
    """Masking rate: share of regions that are masked and predicted, at least one."""

    prompts = ()
    LOSS_OF_TARGET: ClassVar = {"features": "mrfr", "class": "mrc", "distribution": "mrc-kl"}
    LABELS_OF_TARGET: ClassVar = {
        "features": "masked_region_features",
        "class": "region_labels",
        "distribution": "region_distributions",
    }

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        return "masked-regions" + ("" if self.target == "features" else f"-{self.target}")

    @property
    def losses(self) -> dict[str, float]:  # type: ignore[override]
        return {self.LOSS_OF_TARGET[self.target]: 1.0}

    @property
    def max_predictions(self) -> int:
        """Return A, the maximum number of target regions."""
        return max(1, round(self.rate * self.regions))

    def label_fields(self, sequence: int) -> dict[str, BatchField]:
        num_targets = self.max_predictions
        labels = {
            "features": BatchField((num_targets, self.features), "float16"),
            "class": BatchField((num_targets,)),
            "distribution": BatchField((num_targets, self.classes), "float16"),
        }
        return {"masked_positions": BatchField((num_targets,)), self.LABELS_OF_TARGET[self.target]: labels[self.target]}

    def choose_masked(self, regions: Regions, rng: np.random.Generator) -> np.ndarray:
        """Choose the regions to mask: return their sorted indices."""
        return np.sort(rng.choice(len(regions), max(1, round(self.rate * len(regions))), replace=False))

    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        words, masked = self.text_length(context.sequence), self.choose_masked(regions, context.rng)
        sample["tokens"][words + masked] = MASKED_REGION
        sample["region_features"][masked] = 0
        name = self.LABELS_OF_TARGET[self.target]
        field = self.label_fields(context.sequence)[name]
        labels = np.full(field.shape, IGNORED, dtype=field.dtype)
        labels[: len(masked)] = self._region_labels(regions)[masked]
        return {**sample, "masked_positions": pad_pieces([words + masked], self.max_predictions, 0), name: labels}

    def _region_labels(self, regions: Regions) -> np.ndarray:
        """Return the labels of all regions of an image, [R, ...]."""
        if self.target == "class":
            return regions.probabilities[:, 1:].argmax(1) + 1
        return regions.features if self.target == "features" else regions.probabilities


@dataclass(frozen=True)
class ImageTextMatching(RegionObjective):
    """Objectives ITM, whether the regions belong to the text, and WRA, alignment of words and regions. Nothing is
    masked."""

    negative_prob: Share = 0.5
    """Probability of a negative pair, whose image is replaced. (The paper replaces image or text; the released code the
    image.)"""
    retrieved: str | None = field(default=None, metadata=FILE)
    """File of similar images, made by `megaptm corpus retrieve`: the replacement is then similar, and harder to tell
    apart. None, or no similar image: a random one."""

    name = "image-text-matching"
    prompts = ()
    losses: ClassVar = {"itm": 1.0, "wra": 0.1}

    @property
    def random_segment_prob(self) -> float:  # type: ignore[override]
        return self.negative_prob

    @property
    def neighbors(self) -> Neighbors | None:  # type: ignore[override]
        return None if self.retrieved is None else Neighbors(RETRIEVAL_READER, self.retrieved, {"images": 1})

    @property
    def single_pair(self) -> Self:
        """Return the objective of matching without replaced images."""
        return replace(self, retrieved=None, negative_prob=0.0)

    def label_fields(self, sequence: int) -> dict[str, BatchField]:
        return {"matched": BatchField(())}

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        shown = [part for part in piece if not part.retrieved]
        if len(shown) > 1 and (similar := [part for part in piece if part.retrieved]):
            shown = [shown[0], replace(similar[0], other_segment=True)]
        # Another text of the same image is a match.
        matched = shown[-1].blobs == shown[0].blobs
        return super().make_sample(shown, context) | {"matched": np.array(matched, dtype=np.int64)}

    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        return sample


# arXiv:1909.11740, section 3.2, and released configs: 2 : 2 : 1 : 1, one task per batch, transport weight 0.1.
UNITER = NamedMixture(
    tasks=(
        Task("matching", ImageTextMatching(), share_of_third()),
        Task("words", RegionMaskedLM(), share_of_third()),
        Task("features", MaskedRegions(), share_of_third(2)),
        Task("classes", MaskedRegions(target="distribution"), share_of_third(2)),
    ),
    weights_by_step={
        "itm": CONSTANT_ONE,
        "wra": StepValue((0,), (0.1,)),
        "mlm": CONSTANT_ONE,
        "mrfr": CONSTANT_ONE,
        "mrc-kl": CONSTANT_ONE,
    },
    label="uniter",
)

TASKS = {
    "image-text-masked-lm": RegionMaskedLM,
    "image-text-matching": ImageTextMatching,
    "masked-regions": MaskedRegions,
}
OBJECTIVES = (
    RegionMaskedLM(),
    MaskedRegions(),
    MaskedRegions(target="class"),
    MaskedRegions(target="distribution"),
    ImageTextMatching(),
    UNITER,
)
