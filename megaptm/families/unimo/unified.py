"""Objectives on texts, images, and both in one stack (UNIMO, arXiv:2012.15409).

Samples are those of UNITER's objectives, with a position for the full image before its regions, and an attention order.
"""

# T positions of the text, R regions, F features, C classes, A target positions

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import IGNORED, BatchField, BatchSpec, batch_fields
from megaptm.errors import UserError
from megaptm.families.spanbert.masking import mask_spans, replace_spans
from megaptm.families.unimo.fragments import FragmentGeneration, FragmentOptions
from megaptm.families.uniter.objectives import (
    MaskedRegions,
    RegionMaskedLM,
    RegionNumber,
    RegionObjective,
    region_fields,
)
from megaptm.families.uniter.region_files import Regions
from megaptm.families.uniter.spec import MASKED_REGION
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.masked import MaskedLM
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    Sample,
    SampleContext,
    SequenceWindow,
    Share,
    pad_pieces,
)
from megaptm.objectives.replacements import masked_tokens_in_order
from megaptm.objectives.vocabulary import SpecialTokens


@dataclass(frozen=True)
class TextBeforeRegions(Objective):
    """Base of text-only objectives: region positions are empty."""

    regions: RegionNumber = 101
    """Number of region positions in a text-only sample of UNIMO, after those of the text."""
    features: RegionNumber = 2048
    """Number of features of an image region."""

    needs_own_batches: ClassVar[bool] = True
    losses: ClassVar = {"mlm": 1.0}
    required_tokens = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    @property
    @abstractmethod
    def text_objective(self) -> Objective:
        """Return the objective on the text alone."""

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.text_objective.annotations

    def text_length(self, sequence: int) -> int:
        """Return T, the number of text positions."""
        return max(sequence - self.regions, 0)

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def check(self, special: SpecialTokens, sequence: int) -> None:
        if self.raw_length(sequence) < 3:
            raise UserError(
                f"data.sequence ({sequence}) leaves {self.text_length(sequence)} positions for a text before "
                f"{self.regions} regions: raise it, or lower the option `regions` of objective {self.name}."
            )
        super().check(special, sequence)

    def raw_length(self, sequence: int) -> int:
        return self.text_objective.raw_length(self.text_length(sequence))

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return self.text_objective.sequence_window(self.text_length(sequence), document_mask)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        text_spec = self.text_objective.batch_spec(self.text_length(sequence), document_mask)
        shared = batch_fields((sequence,), "tokens", "segments", "positions", "document_ids", "order")
        return BatchSpec({"": sequence}, {**text_spec.fields, **shared, **region_fields(self.regions, self.features)})

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        words, special = self.text_length(context.sequence), context.special
        text_context = SampleContext(special, context.rng, words, context.document_mask)
        sample = self.text_objective.make_sample(piece, text_context)
        padded = self.batch_spec(context.sequence, context.document_mask).pad_sample(sample, pad=special.pad)
        # Region positions are empty, whatever id pads a text.
        padded["tokens"][words:] = 0
        return padded


@dataclass(frozen=True)
class TextSpans(TextBeforeRegions):
    """Objective of masked spans of a text (section 2.3: bidirectional prediction)."""

    rate: Rate = 0.15
    """Masking rate: share of tokens that are masked and predicted."""
    mask_token_prob: Share = 0.8
    """Probability that a masked span is replaced by mask tokens."""
    random_token_prob: Share = 0.1
    """Probability that a masked span is replaced by random tokens. Otherwise the span is unchanged."""
    units: Literal["tokens", "words"] = "words"
    """Unit of spans. Words need a corpus with `annotate.words`."""

    name = "text-spans"

    def __post_init__(self) -> None:
        _ = self.text_objective

    @property
    def text_objective(self) -> Objective:
        return MaskedLM(
            hide="spans",
            show="spans",
            units=self.units,
            rate=self.rate,
            mask_token_prob=self.mask_token_prob,
            random_token_prob=self.random_token_prob,
        )


@dataclass(frozen=True)
class TextFragments(TextBeforeRegions, FragmentOptions):
    """Objective of fragment generation on a text (section 2.3: sequence-to-sequence generation)."""

    name = "text-fragments"

    @property
    def text_objective(self) -> Objective:
        return FragmentGeneration(rate=self.rate, min_length=self.min_length, max_length=self.max_length)


@dataclass(frozen=True)
class UnifiedObjective(RegionObjective):
    """Base of objectives with images: a position for the full image, with mean features, precedes its regions."""

    regions: RegionNumber = 101
    """Number of positions of the full image and its regions, after those of the text. Further regions are dropped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regions < 2:
            raise UserError(
                f"regions ({self.regions}) must be at least 2: the full image takes the first region position."
            )

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        spec = super().batch_spec(sequence, document_mask)
        return BatchSpec(spec.streams, {**spec.fields, **batch_fields((sequence,), "order")})

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        return {"order": np.zeros(context.sequence, dtype=np.int64)} | super().make_sample(piece, context)

    def _read_regions(self, document: DocumentSlice, max_regions: int) -> Regions:
        regions = super()._read_regions(document, max_regions - 1)
        full_image = Regions(
            regions.features.mean(0, dtype=np.float32, keepdims=True).astype(np.float16),
            np.array([[0, 0, 1, 1, 1, 1, 1]], dtype=np.float32),
            np.zeros((1, regions.probabilities.shape[1]), dtype=regions.probabilities.dtype),
            np.ones(1, dtype=np.float32),
        )
        both = zip(vars(full_image).values(), vars(regions).values(), strict=True)
        return Regions(*(np.concatenate(pair) for pair in both))


@dataclass(frozen=True)
class ImageTextSpans(UnifiedObjective, RegionMaskedLM):
    """Objective of masked spans of a text, with its image visible (section 2.3)."""

    name = "image-text-spans"

    def noise(self, text: np.ndarray, max_masked: int) -> Denoise:
        starts = np.ones(len(text), dtype=np.int64)
        hide = mask_spans(rate=self.rate, max_masked=max_masked, unit_starts=starts)
        show = replace_spans(mask_token_prob=self.mask_token_prob, random_token_prob=self.random_token_prob)
        return Denoise(hide=hide, show=show, ask=masked_tokens_in_order)


@dataclass(frozen=True)
class ImageTextFragments(UnifiedObjective, FragmentOptions):
    """Objective of fragment generation on a text, with its image visible (section 2.3)."""

    name = "image-text-fragments"
    losses: ClassVar = {"mlm": 1.0}
    prompts = ("masks",)

    def __post_init__(self) -> None:
        UnifiedObjective.__post_init__(self)
        FragmentOptions.__post_init__(self)

    def label_fields(self, sequence: int) -> dict[str, BatchField]:
        return batch_fields((self.max_predictions(self.text_length(sequence)),), "masked_positions", "labels")

    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        words, special = self.text_length(context.sequence), context.special
        # Leaves room for the fragments after the text.
        room = words - 2 * self.max_fragments(words)
        truncated = text if len(text) <= room else np.array([*text[: room - 1], special.sep])
        fragmented = self.remove_fragments([truncated], special, context.rng)
        [tokens], [order] = fragmented.tokens, fragmented.order
        assert special.pad is not None
        sample["tokens"][:words] = pad_pieces([tokens], words, special.pad)
        sample["document_ids"][: len(tokens)] = 1
        max_predictions = self.max_predictions(words)
        return {
            **sample,
            "order": pad_pieces([order], context.sequence, 0),
            "masked_positions": pad_pieces([fragmented.target_positions], max_predictions, 0),
            "labels": pad_pieces([fragmented.labels], max_predictions, IGNORED),
        }


@dataclass(frozen=True)
class MaskedAreas(UnifiedObjective, MaskedRegions):
    """Objective of masked regions, together with all regions that overlap them (section 2.2)."""

    min_overlap: Share = 0.3
    """Intersection over union above which regions are masked together."""
    image_only: bool = False
    """Whether the image is shown without its text."""

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        target = "" if self.target == "features" else f"-{self.target}"
        return f"masked-areas{target}{'-alone' if self.image_only else ''}"

    @property
    def max_predictions(self) -> int:
        """Return A, the maximum number of target regions: overlapping regions may exceed the share."""
        return min(self.regions - 1, max(1, round(2 * self.rate * self.regions)))

    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        sample, words = super().add_labels(sample, text, regions, context), self.text_length(context.sequence)
        if self.image_only:
            sample["document_ids"][:words] = 0
        # The mean of all regions would reveal masked ones.
        visible = 1 + np.flatnonzero(sample["tokens"][words + 1 : words + len(regions)] != MASKED_REGION)
        sample["region_features"][0] = regions.features[visible].mean(0, dtype=np.float32) if len(visible) else 0
        return sample

    def choose_masked(self, regions: Regions, rng: np.random.Generator) -> np.ndarray:
        """Return sorted indices of masked regions: complete groups of overlapping regions until the share is reached.
        The full image, at index 0, is never masked."""
        overlapping = intersection_over_union(regions.boxes[1:]) > self.min_overlap
        masked = np.zeros(len(overlapping), dtype=bool)
        num_masked = max(1, round(self.rate * len(overlapping)))
        for anchor in rng.permutation(len(overlapping)).tolist():
            if masked.sum() >= num_masked:
                break
            area = masked | overlapping[anchor]
            area[anchor] = True
            if area.sum() <= self.max_predictions:
                masked = area
        if not masked.any():  # every group exceeds the limit
            masked[rng.integers(len(overlapping))] = True
        return np.flatnonzero(masked) + 1


def intersection_over_union(boxes_R7: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each pair of region boxes, [R, R]."""
    first = np.maximum(boxes_R7[:, None, :2], boxes_R7[None, :, :2])
    last = np.minimum(boxes_R7[:, None, 2:4], boxes_R7[None, :, 2:4])
    common = np.clip(last - first, 0, None).prod(-1)
    area = np.clip(boxes_R7[:, 2:4] - boxes_R7[:, :2], 0, None).prod(-1)
    union = area[:, None] + area[None, :] - common
    shares: np.ndarray = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares
