"""Cross-modal contrastive objective: which text describes an image, among all of a batch, with rewritten and retrieved
texts and images (UNIMO, arXiv:2012.15409, section 2.1)."""

# T places of a row's texts, R of its images, J images, K texts

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field as Option

from megaptm.batch import COMPARED_IMAGES, COMPARED_TEXTS, IGNORED, Field
from megaptm.errors import UserError
from megaptm.objectives.meanings import REMEDY, meanings_named
from megaptm.objectives.objective import RETRIEVED, DocumentSlice, Neighbors, Piece, Sample, SampleContext, padded
from megaptm.objectives.region_files import Regions
from megaptm.objectives.rewriting import tokens_of
from megaptm.objectives.unified import UnifiedObjective
from megaptm.objectives.vocabulary import SpecialTokens

OtherTexts = Annotated[int, Option(ge=0, le=COMPARED_TEXTS - 1)]
OtherImages = Annotated[int, Option(ge=0, le=COMPARED_IMAGES - 1)]


@dataclass(frozen=True)
class CrossModalContrast(UnifiedObjective):
    """CMCL: match images and texts of a batch (section 2.1).

    With `meanings` a caption has paraphrases as positives, and rewritten captions with a changed word or phrase as
    negatives. With `retrieved` a pair has similar images and texts of other documents as positives, and captions of
    similar images as negatives. Texts and images do not attend to each other.
    """

    meanings: str | None = None
    """File of phrases by meaning, made by `megaptm corpus meanings`. None: no rewritten captions."""
    kept: OtherTexts = 2
    """Maximum number of paraphrases."""
    broken: OtherTexts = 3
    """Maximum number of negative rewritings; every second changes an object with its attributes, the others one
    phrase."""
    retrieved: str | None = None
    """File of retrieved neighbors, made by `megaptm corpus retrieve`. None: no neighbors."""
    retrieved_images: OtherImages = 1
    """Maximum number of similar images. They share the region positions with the pair's own image."""
    retrieved_texts: OtherTexts = 1
    """Maximum number of retrieved texts on the caption's topic."""
    retrieved_captions: OtherTexts = 1
    """Maximum number of captions of other images, which are negatives."""

    name = "cross-modal-contrast"
    prompts = ()
    losses: ClassVar = {"cmcl": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = {"kept": self.kept, "broken": self.broken}
        if self.retrieved is not None:
            numbers |= {"retrieved_texts": self.retrieved_texts, "retrieved_captions": self.retrieved_captions}
            if (images := 1 + self.retrieved_images) * 2 > self.regions:
                raise UserError(
                    f"regions ({self.regions}) leaves each of {images} images no place behind the whole of it: raise "
                    "it, or lower retrieved_images."
                )
        if sum(numbers.values()) >= COMPARED_TEXTS:
            *first, last = (f"{name} ({number})" for name, number in numbers.items())
            raise UserError(
                f"{', '.join(first)} and {last} are with the caption more than {COMPARED_TEXTS} texts: lower one."
            )

    @property
    def neighbors(self) -> Neighbors | None:  # type: ignore[override]
        if self.retrieved is None:
            return None
        numbers = (self.retrieved_images, self.retrieved_texts, self.retrieved_captions)
        return Neighbors(self.retrieved, dict(zip(RETRIEVED, numbers, strict=True)))

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if self.meanings is not None and (largest := meanings_named(self.meanings).largest) >= special.size:
            raise UserError(
                f"meanings: {self.meanings} has ids up to {largest}, the tokenizer {special.size}: it is of another; "
                f"{REMEDY}."
            )

    def asked(self, sequence: int) -> dict[str, Field]:
        return {
            "image_places": Field((COMPARED_IMAGES,)),
            "text_places": Field((COMPARED_TEXTS,)),
            "right_texts": Field(()),
        }

    def ask(self, row: Sample, text: np.ndarray, found: Regions, context: SampleContext) -> Sample:
        return row

    def room(self, piece: Sequence[DocumentSlice]) -> int:
        return self._own_places(others=len(_of_kind(piece, "images")))

    def _own_places(self, *, others: int) -> int:
        return self.regions - others * (self.regions // (1 + others))

    @property
    def alone(self) -> CrossModalContrast:
        """Return the objective for a single pair, with as many regions for its image as beside retrieved ones: more
        regions than in training give worse vectors."""
        others = 0 if self.retrieved is None else self.retrieved_images
        return replace(self, retrieved=None, meanings=None, regions=self._own_places(others=others))

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        row, words = super().make(piece, context), self.words(context.sequence)
        caption = row["tokens"][: int((row["document_ids"][:words] > 0).sum())].copy()
        right, wrong = self._rewritten(caption[1:-1], context.rng)
        right += [part.tokens for part in _of_kind(piece, "texts")]
        wrong += [part.tokens for part in _of_kind(piece, "captions")]
        texts = self._lay_texts(row, caption, right, wrong, context)
        return {**row, **texts, **self._lay_images(row, piece, words)}

    def _lay_texts(
        self,
        row: Sample,
        caption: np.ndarray,
        right: Sequence[np.ndarray],
        wrong: Sequence[np.ndarray],
        context: SampleContext,
    ) -> Sample:
        """Append texts after the caption while they fit, each a document. Return their positions and the number of
        positives."""
        words, special = self.words(context.sequence), context.special
        texts, left = [caption], words - len(caption)
        number = 1
        for one, is_right in [*((one, True) for one in right), *((one, False) for one in wrong)]:
            whole = np.concatenate([[special.cls], one, [special.sep]])
            if len(whole) <= left:
                texts.append(whole)
                left -= len(whole)
                number += is_right
        lengths = [len(one) for one in texts]
        assert special.pad is not None
        row["tokens"][:words] = padded(texts, words, special.pad)
        row["positions"][:words] = padded([np.arange(length) for length in lengths], words, 0)
        # The image is document 1; documents do not attend to each other.
        row["document_ids"][:words] = padded([np.full(n, 2 + at) for at, n in enumerate(lengths)], words, 0)
        begins = np.cumsum([0, *lengths[:-1]])
        return {
            "text_places": padded([begins], COMPARED_TEXTS, IGNORED),
            "right_texts": np.array(number, dtype=np.int64),
        }

    def _lay_images(self, row: Sample, piece: Sequence[DocumentSlice], words: int) -> Sample:
        """Append images after the pair's own, each a document. Return their positions."""
        images, own = _of_kind(piece, "images"), self.room(piece)
        share, begins = self.regions // (1 + len(images)), [words]
        for number, image in enumerate(images):
            found, at = self._regions(image, share), own + number * share
            row["document_ids"][words + at : words + at + len(found)] = 2 + COMPARED_TEXTS + number
            row["region_features"][at : at + len(found)] = found.features
            row["region_boxes"][at : at + len(found)] = found.boxes
            begins.append(words + at)
        return {"image_places": padded([np.array(begins)], COMPARED_IMAGES, IGNORED)}

    def _rewritten(self, caption: np.ndarray, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return tokens of paraphrases, and of negative rewritings."""
        if self.meanings is None:
            return [], []
        known = meanings_named(self.meanings)
        words, rewriter = known.words(caption), known.rewriter
        kept = rewriter.kept(words, rng, number=self.kept) if self.kept else []
        whole = rewriter.broken(words, rng, number=self.broken // 2, whole=True) if self.broken > 1 else []
        rest = self.broken - len(whole)
        single = [one for one in rewriter.broken(words, rng, number=rest) if one not in whole] if rest else []
        return [tokens_of(one) for one in kept], [tokens_of(one) for one in (*single, *whole)]


def _of_kind(piece: Sequence[DocumentSlice], kind: str) -> list[DocumentSlice]:
    """Return slices retrieved as one kind of `RETRIEVED`."""
    return [part for part in piece if part.retrieved == kind]
