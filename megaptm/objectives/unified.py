"""Objectives on texts, images, and both in one stack (UNIMO, arXiv:2012.15409).

Samples are those of `regions`, with a position for the full image before its regions, and an attention order.
"""

# T positions of the text, R regions, F features, C classes, A target positions

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from megaptm.batch import IGNORED, MASKED_REGION, BatchSpec, Field, fields
from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.fragments import FragmentGeneration, FragmentOptions
from megaptm.objectives.hide import HIDES
from megaptm.objectives.masked import MaskedLM
from megaptm.objectives.objective import (
    DocumentSlice,
    Objective,
    Piece,
    Rate,
    RowWindow,
    Sample,
    SampleContext,
    Share,
    padded,
)
from megaptm.objectives.region_files import Regions
from megaptm.objectives.regions import MaskedRegions, RegionMaskedLM, RegionNumber, RegionObjective, region_fields
from megaptm.objectives.show_ask import SHOWS, hidden_in_place
from megaptm.objectives.vocabulary import SpecialTokens


@dataclass(frozen=True)
class TextBeforeRegions(Objective):
    """Base of text-only objectives: region positions are empty."""

    regions: RegionNumber = 101
    """Number of region positions, after those of the text."""
    features: RegionNumber = 2048
    """Feature width of a region."""

    own_batches: ClassVar[bool] = True
    losses: ClassVar = {"mlm": 1.0}
    needs = ("pad", "cls", "sep", "mask")
    prompts = ("masks",)
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    @property
    @abstractmethod
    def text(self) -> Objective:
        """Objective on the text."""

    @property
    def annotations(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.text.annotations

    def words(self, sequence: int) -> int:
        """Return T, the number of text positions."""
        return max(sequence - self.regions, 0)

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def check(self, special: SpecialTokens, sequence: int) -> None:
        if self.raw_length(sequence) < 3:
            raise UserError(
                f"data.sequence ({sequence}) leaves {self.words(sequence)} places to a text before {self.regions} "
                f"regions: make it longer, or lower the option `regions` of objective {self.name}."
            )
        super().check(special, sequence)

    def raw_length(self, sequence: int) -> int:
        return self.text.raw_length(self.words(sequence))

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return self.text.cut(self.words(sequence), document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        own = self.text.batch(self.words(sequence), document_mask)
        along = fields((sequence,), "tokens", "segments", "positions", "document_ids", "order")
        return BatchSpec({"": sequence}, {**own.fields, **along, **region_fields(self.regions, self.features)})

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        words, special = self.words(context.sequence), context.special
        inner = SampleContext(special, context.rng, words, context.document_mask)
        made = self.text.make(piece, inner)
        row = self.batch(context.sequence, context.document_mask).widened(made, pad=special.pad)
        # Region positions are empty, whatever id pads a text.
        row["tokens"][words:] = 0
        return row


@dataclass(frozen=True)
class TextSpans(TextBeforeRegions):
    """Masked spans of a text (section 2.3: bidirectional prediction)."""

    rate: Rate = 0.15
    """Share of tokens that are masked and predicted."""
    mask: Share = 0.8
    """Share of spans replaced by mask tokens."""
    random: Share = 0.1
    """Share of spans replaced by random tokens. The rest is unchanged."""
    units: Literal["tokens", "words"] = "words"
    """Unit of spans. Words need a corpus with `annotate.words`."""

    name = "text-spans"

    def __post_init__(self) -> None:
        _ = self.text

    @property
    def text(self) -> Objective:
        return MaskedLM(
            hide="spans", show="spans", units=self.units, rate=self.rate, mask=self.mask, random=self.random
        )


@dataclass(frozen=True)
class TextFragments(TextBeforeRegions, FragmentOptions):
    """Fragment generation on a text (section 2.3: sequence-to-sequence generation)."""

    name = "text-fragments"

    @property
    def text(self) -> Objective:
        return FragmentGeneration(rate=self.rate, shortest=self.shortest, longest=self.longest)


@dataclass(frozen=True)
class UnifiedObjective(RegionObjective):
    """Base of objectives with images: a position for the full image, with mean features, precedes its regions."""

    regions: RegionNumber = 101
    """Number of positions of the full image and its regions, after those of the text. Further regions are dropped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regions < 2:
            raise UserError(
                f"regions ({self.regions}) leaves no place to a region behind the whole image: say 2 or more."
            )

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        spec = super().batch(sequence, document_mask)
        return BatchSpec(spec.streams, {**spec.fields, **fields((sequence,), "order")})

    def text_fields(self, length: int) -> Sample:
        return {"order": np.zeros(length, dtype=np.int64)}

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        made = super().make(piece, context)
        return {"order": np.zeros(context.sequence, dtype=np.int64)} | made

    def _regions(self, document: DocumentSlice, most: int) -> Regions:
        found = super()._regions(document, most - 1)
        one = np.ones(1, dtype=np.float32)
        whole = Regions(
            found.features.mean(0, dtype=np.float32, keepdims=True).astype(np.float16),
            np.array([[0, 0, 1, 1, 1, 1, 1]], dtype=np.float32),
            np.zeros((1, found.likely.shape[1]), dtype=found.likely.dtype),
            one,
        )
        both = zip(vars(whole).values(), vars(found).values(), strict=True)
        return Regions(*(np.concatenate(pair) for pair in both))


@dataclass(frozen=True)
class ImageTextSpans(UnifiedObjective, RegionMaskedLM):
    """Masked spans of a text, with its image visible (section 2.3)."""

    name = "image-text-spans"

    def noise(self, text: np.ndarray, most: int) -> Denoise:
        hide = HIDES["spans"](rate=self.rate, most=most, begins=np.ones(len(text), dtype=np.int64))
        return Denoise(hide=hide, show=SHOWS["spans"](mask=self.mask, random=self.random), ask=hidden_in_place)


@dataclass(frozen=True)
class ImageTextFragments(UnifiedObjective, FragmentOptions):
    """Fragment generation on a text, with its image visible (section 2.3)."""

    name = "image-text-fragments"
    losses: ClassVar = {"mlm": 1.0}
    prompts = ("masks",)

    def __post_init__(self) -> None:
        UnifiedObjective.__post_init__(self)
        FragmentOptions.__post_init__(self)

    def asked(self, sequence: int) -> dict[str, Field]:
        return fields((self.fragments.most_asked(self.words(sequence)),), "masked_positions", "labels")

    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        words, special = self.words(context.sequence), context.special
        # Leaves room for the fragments after the text.
        own = (
            text if (most := words - 2 * self.fragments.most(words)) >= len(text) else [*text[: most - 1], special.sep]
        )
        made = self.fragments.write([np.asarray(own)], special, context.rng)
        [tokens], [order] = made.tokens, made.order
        assert special.pad is not None
        row["tokens"][:words] = padded([tokens], words, special.pad)
        row["document_ids"][: len(tokens)] = 1
        number = self.fragments.most_asked(words)
        return {
            **row,
            "order": padded([order], context.sequence, 0),
            "masked_positions": padded([made.asked], number, 0),
            "labels": padded([made.answers], number, IGNORED),
        }


@dataclass(frozen=True)
class MaskedAreas(UnifiedObjective, MaskedRegions):
    """Masked regions, together with all regions that overlap them (section 2.2)."""

    overlap: Share = 0.3
    """Intersection over union above which regions are masked together."""
    alone: bool = False
    """Whether the image is shown without its text."""

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        asked = "" if self.ask_for == "features" else f"-{self.ask_for}"
        return f"masked-areas{asked}{'-alone' if self.alone else ''}"

    @property
    def most_asked(self) -> int:
        """Return A, the largest number of target regions: overlapping regions may exceed the share."""
        return min(self.regions - 1, max(1, round(2 * self.rate * self.regions)))

    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        made, words = super().ask(row, text, found, context), self.words(context.sequence)
        if self.alone:
            made["document_ids"][:words] = 0
        # The mean of all regions would reveal masked ones.
        shown = 1 + np.flatnonzero(made["tokens"][words + 1 : words + len(found)] != MASKED_REGION)
        made["region_features"][0] = found.features[shown].mean(0, dtype=np.float32) if len(shown) else 0
        return made

    def hidden(self, found: Regions, rng: np.random.Generator) -> np.ndarray:
        """Return sorted indices of masked regions: complete overlap groups until the share is reached. The full image,
        at index 0, is never masked."""
        shared = overlaps(found.boxes[1:]) > self.overlap
        hidden = np.zeros(len(shared), dtype=bool)
        wanted = max(1, round(self.rate * len(shared)))
        for anchor in rng.permutation(len(shared)).tolist():
            if hidden.sum() >= wanted:
                break
            area = hidden | shared[anchor]
            area[anchor] = True
            if area.sum() <= self.most_asked:
                hidden = area
        if not hidden.any():  # every group exceeds the limit
            hidden[rng.integers(len(shared))] = True
        return np.flatnonzero(hidden) + 1


def overlaps(boxes_R7: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each pair of boxes, [R, R]."""
    first = np.maximum(boxes_R7[:, None, :2], boxes_R7[None, :, :2])
    last = np.minimum(boxes_R7[:, None, 2:4], boxes_R7[None, :, 2:4])
    common = np.clip(last - first, 0, None).prod(-1)
    area = np.clip(boxes_R7[:, 2:4] - boxes_R7[:, :2], 0, None).prod(-1)
    union = area[:, None] + area[None, :] - common
    shares: np.ndarray = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares
