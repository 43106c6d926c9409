"""Objectives on a text and regions of its image (UNITER, arXiv:1909.11740)."""

# S sequence, T positions of the text, R regions, F features, C classes, A target positions

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field as Option

from megaptm.batch import BOX_NUMBERS, IGNORED, MASKED_REGION, REGION, BatchSpec, Field, fields
from megaptm.errors import UserError
from megaptm.objectives.denoise import Denoise
from megaptm.objectives.hide import HIDES
from megaptm.objectives.masked import ROW
from megaptm.objectives.objective import (
    DAMAGED_FILE,
    DocumentSlice,
    Neighbors,
    Objective,
    Piece,
    Rate,
    RowWindow,
    Sample,
    SampleContext,
    Share,
    documents_of,
    padded,
    refuse_lacking_tokens,
)
from megaptm.objectives.region_files import SUFFIX, RefusedRegions, Regions, read_regions
from megaptm.objectives.show_ask import SHOWS, check_shares, hidden_in_place
from megaptm.objectives.vocabulary import SpecialTokens

RegionNumber = Annotated[int, Option(ge=1, le=1 << 14)]
"""Option: number of regions, or of detector outputs per region."""


def region_fields(regions: int, features: int) -> dict[str, Field]:
    """Return the batch fields of regions."""
    return {
        "region_features": Field((regions, features), "float16"),
        "region_boxes": Field((regions, BOX_NUMBERS), "float32"),
    }


@dataclass(frozen=True)
class RegionObjective(Objective):
    """Sample of a text, `cls` A `sep`, followed by the regions of its image."""

    regions: RegionNumber = 100
    """Number of region positions, after those of the text. Further regions are dropped."""
    features: RegionNumber = 2048
    """Feature width of a region."""
    classes: Annotated[int, Option(ge=2, le=1 << 14)] = 1601
    """Number of detector classes, background first."""
    confidence: Share = 0.2
    """Minimum detector confidence; the first `least` regions are kept regardless."""
    least: RegionNumber = 10
    """Minimum number of regions, if the image has as many."""

    unit = "document"
    blobs: ClassVar = (SUFFIX,)
    reads_labels = False
    own_batches: ClassVar[bool] = True
    segments = 2
    needs = ("pad", "cls", "sep", "mask")
    template: ClassVar = ("cls A sep", "cls A sep B sep")

    def __post_init__(self) -> None:
        """Raise `UserError` if options contradict each other."""

    @property
    def supervised(self) -> bool:
        return True

    def raw_length(self, sequence: int) -> int:
        """Return 1: one image per sample."""
        return 1

    def cut(self, sequence: int, document_mask: bool) -> RowWindow:
        return RowWindow(stride=1, most=1)

    def words(self, sequence: int) -> int:
        """Return T, the number of text positions."""
        return max(sequence - self.regions, 0)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        read = fields((sequence,), *ROW) | region_fields(self.regions, self.features)
        return BatchSpec({"": sequence}, read | self.asked(sequence))

    def check(self, special: SpecialTokens, sequence: int) -> None:
        remedy = "`megaptm corpus images ... regions=true`, whose texts have them, or with tokenizer.kind=wordpiece"
        refuse_lacking_tokens(self, special, remedy=remedy)
        if (words := self.words(sequence)) < 3:
            raise UserError(
                f"data.sequence ({sequence}) leaves {words} places to a text before {self.regions} regions: make it "
                f"longer, or lower the option `regions` of objective {self.name}."
            )

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        own, *others = piece
        others = [part for part in others if part.elsewhere]
        special, words = context.special, self.words(context.sequence)
        text = np.concatenate([[special.cls], own.tokens[: words - 2].astype(np.int64), [special.sep]])
        found = self._regions(others[0] if others else own, self.room(piece))
        assert special.pad is not None
        row: Sample = {
            "tokens": padded([text], context.sequence, special.pad),
            "segments": (np.arange(context.sequence) >= words).astype(np.int64),
            "positions": np.arange(context.sequence),
            "document_ids": documents_of([len(text)], context.sequence)[0],
            "region_features": np.zeros((self.regions, self.features), dtype=np.float16),
            "region_boxes": np.zeros((self.regions, BOX_NUMBERS), dtype=np.float32),
        }
        row["tokens"][words:] = REGION
        row["document_ids"][words : words + len(found)] = 1
        row["region_features"][: len(found)] = found.features
        row["region_boxes"][: len(found)] = found.boxes
        return self.ask(row, text, found, context)

    def room(self, piece: Sequence[DocumentSlice]) -> int:
        """Return the number of positions for the image."""
        return self.regions

    @abstractmethod
    def asked(self, sequence: int) -> dict[str, Field]:
        """Return the label fields."""

    @abstractmethod
    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        """Return inputs, possibly changed, and labels."""

    def _regions(self, document: DocumentSlice, most: int) -> Regions:
        """Return at most `most` regions."""
        content = document.blobs.get(SUFFIX)
        if content is None:
            raise UserError(
                "a document of the corpus has no regions: build it with `megaptm corpus images regions=true`."
            )
        try:
            found = read_regions(content, features=self.features, classes=self.classes)
        except RefusedRegions as refused:
            place = document.place or "a document"
            raise UserError(
                f"the regions of {place} cannot be read ({refused}): give objective {self.name} the `features` and "
                f"`classes` of their detector, or, where the file is damaged, {DAMAGED_FILE}."
            ) from None
        sure = int((found.confidence > self.confidence).sum())
        return found.first(min(max(sure, self.least), most))


@dataclass(frozen=True)
class RegionMaskedLM(RegionObjective):
    """MLM: masked tokens of a text, with its image visible."""

    rate: Rate = 0.15
    """Share of tokens that are masked and predicted."""
    mask: Share = 0.8
    """Share of masked tokens replaced by the mask token."""
    random: Share = 0.1
    """Share replaced by a random token. The rest is unchanged."""

    name = "image-text-masked-lm"
    losses: ClassVar = {"mlm": 1.0}
    prompts = ("masks",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.mask, self.random)

    def most_asked(self, sequence: int) -> int:
        """Return A, the largest number of target positions."""
        return max(1, round(self.rate * self.words(sequence)))

    def asked(self, sequence: int) -> dict[str, Field]:
        return fields((self.most_asked(sequence),), "masked_positions", "labels")

    def noise(self, text: np.ndarray, most: int) -> Denoise:
        """Return the masking of a text, with up to `most` masked tokens."""
        hide, show = HIDES["tokens"](rate=self.rate, most=most), SHOWS["tokens"](mask=self.mask, random=self.random)
        return Denoise(hide=hide, show=show, ask=hidden_in_place)

    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        most = self.most_asked(context.sequence)
        hidden, shown, answers = self.noise(text, most)(text, context.special, context.rng)
        row["tokens"][: len(text)] = shown
        return {
            **row,
            "masked_positions": padded([np.flatnonzero(hidden)], most, 0),
            "labels": padded([answers], most, IGNORED),
        }


@dataclass(frozen=True)
class MaskedRegions(RegionObjective):
    """MRFR, MRC and MRC-kl: masked regions, with the text visible."""

    ask_for: Literal["features", "class", "distribution"] = "features"
    """Labels of masked regions: their `features`; the detector's most likely `class`, background excluded; or its class
    `distribution`."""
    rate: Rate = 0.15
    """Share of regions that are masked and predicted, at least one."""

    prompts = ()
    LOSSES: ClassVar = {"features": "mrfr", "class": "mrc", "distribution": "mrc-kl"}
    ANSWERS: ClassVar = {
        "features": "hidden_features",
        "class": "region_labels",
        "distribution": "region_distributions",
    }

    @property
    def name(self) -> str:  # type: ignore[override] # a constant of other objectives
        return "masked-regions" + ("" if self.ask_for == "features" else f"-{self.ask_for}")

    @property
    def losses(self) -> dict[str, float]:  # type: ignore[override]
        return {self.LOSSES[self.ask_for]: 1.0}

    @property
    def most_asked(self) -> int:
        """Return A, the largest number of target regions."""
        return max(1, round(self.rate * self.regions))

    def asked(self, sequence: int) -> dict[str, Field]:
        most = self.most_asked
        answers = {
            "features": Field((most, self.features), "float16"),
            "class": Field((most,)),
            "distribution": Field((most, self.classes), "float16"),
        }
        return {"masked_positions": Field((most,)), self.ANSWERS[self.ask_for]: answers[self.ask_for]}

    def hidden(self, found: Regions, rng: np.random.Generator) -> np.ndarray:
        """Return sorted indices of masked regions."""
        return np.sort(rng.choice(len(found), max(1, round(self.rate * len(found))), replace=False))

    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        words, hidden = self.words(context.sequence), self.hidden(found, context.rng)
        row["tokens"][words + hidden] = MASKED_REGION
        row["region_features"][hidden] = 0
        answers = self.ANSWERS[self.ask_for]
        field = self.asked(context.sequence)[answers]
        asked = np.full(field.shape, IGNORED, dtype=field.dtype)
        asked[: len(hidden)] = self._known(found)[hidden]
        return {**row, "masked_positions": padded([words + hidden], self.most_asked, 0), answers: asked}

    def _known(self, found: Regions) -> np.ndarray:
        """Return the labels of all regions, [R, ...]."""
        if self.ask_for == "class":
            return found.likely[:, 1:].argmax(1) + 1
        return found.features if self.ask_for == "features" else found.likely


@dataclass(frozen=True)
class ImageTextMatching(RegionObjective):
    """ITM: whether the regions belong to the text; WRA: alignment of words and regions. Nothing is masked."""

    replaced: Share = 0.5
    """Probability that the image is replaced. (The paper replaces image or text; the released code the image.)"""
    retrieved: str | None = None
    """File of similar images, made by `megaptm corpus retrieve`: the replacement is then similar, and harder to tell
    apart. None, or no similar image: a random one."""

    name = "image-text-matching"
    prompts = ()
    losses: ClassVar = {"itm": 1.0, "wra": 0.1}

    @property
    def elsewhere(self) -> float:  # type: ignore[override]
        return self.replaced

    @property
    def neighbors(self) -> Neighbors | None:  # type: ignore[override]
        return None if self.retrieved is None else Neighbors(self.retrieved, {"images": 1})

    @property
    def alone(self) -> ImageTextMatching:
        """Return the objective without replaced images."""
        return replace(self, retrieved=None, replaced=0.0)

    def asked(self, sequence: int) -> dict[str, Field]:
        return {"matched": Field(())}

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        shown = [part for part in piece if not part.retrieved]
        if len(shown) > 1 and (like := [part for part in piece if part.retrieved]):
            shown = [shown[0], replace(like[0], elsewhere=True)]
        # Another text of the same image is a match.
        matched = shown[-1].blobs == shown[0].blobs
        return super().make(shown, context) | {"matched": np.array(matched, dtype=np.int64)}

    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        return row
