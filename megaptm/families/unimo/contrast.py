"""Cross-modal contrastive objective: which text describes an image, among all of a batch, with rewritten and retrieved
texts and images (UNIMO, arXiv:2012.15409, section 2.1)."""

# T positions of a sample's texts, R of its images, J images, K texts

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field as Option

from megaptm.batch import IGNORED, BatchField
from megaptm.errors import UserError
from megaptm.families.unimo.head_costs import MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS
from megaptm.families.unimo.meanings import REMEDY, load_meanings
from megaptm.families.unimo.rewriting import join_words
from megaptm.families.unimo.unified import UnifiedObjective
from megaptm.families.uniter.objectives import RETRIEVAL_READER, RETRIEVED
from megaptm.families.uniter.region_files import Regions
from megaptm.objectives.named_file import FILE
from megaptm.objectives.objective import DocumentSlice, Neighbors, Piece, Sample, SampleContext, pad_pieces
from megaptm.objectives.vocabulary import SpecialTokens

OtherTexts = Annotated[int, Option(ge=0, le=MAX_COMPARED_TEXTS - 1)]
OtherImages = Annotated[int, Option(ge=0, le=MAX_COMPARED_IMAGES - 1)]


@dataclass(frozen=True)
class CrossModalContrast(UnifiedObjective):
    """Objective of cross-modal contrast (CMCL): match images and texts of a batch (section 2.1).

    With `meanings` a caption has paraphrases as positives, and rewritten captions with a changed word or phrase as
    negatives. With `retrieved` a pair has similar images and texts of other documents as positives, and captions of
    similar images as negatives. Texts and images do not attend to each other.
    """

    meanings: str | None = field(default=None, metadata=FILE)
    """File of phrases by meaning, made by `megaptm corpus meanings`. None: no rewritten captions."""
    max_paraphrases: OtherTexts = 2
    """Maximum number of paraphrases per caption in UNIMO's contrastive objective."""
    max_rewritten_negatives: OtherTexts = 3
    """Maximum number of negative rewritings; every second changes an object with its attributes, the others one
    phrase."""
    retrieved: str | None = field(default=None, metadata=FILE)
    """File of retrieved neighbors, made by `megaptm corpus retrieve`. None: no neighbors."""
    max_retrieved_images: OtherImages = 1
    """Maximum number of similar images. They share the region positions with the pair's own image."""
    max_retrieved_texts: OtherTexts = 1
    """Maximum number of retrieved texts on the caption's topic."""
    max_retrieved_captions: OtherTexts = 1
    """Maximum number of captions of other images, which are negatives."""

    name = "cross-modal-contrast"
    prompts = ()
    losses: ClassVar = {"cmcl": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = {
            "max_paraphrases": self.max_paraphrases,
            "max_rewritten_negatives": self.max_rewritten_negatives,
        }
        if self.retrieved is not None:
            numbers |= {
                "max_retrieved_texts": self.max_retrieved_texts,
                "max_retrieved_captions": self.max_retrieved_captions,
            }
            if (images := 1 + self.max_retrieved_images) * 2 > self.regions:
                raise UserError(
                    f"regions ({self.regions}) is less than two positions for each of {images} images (the full "
                    "image and a region): raise it, or lower max_retrieved_images."
                )
        if sum(numbers.values()) >= MAX_COMPARED_TEXTS:
            *first, last = (f"{name} ({number})" for name, number in numbers.items())
            raise UserError(
                f"{', '.join(first)}, {last} and the caption are more than {MAX_COMPARED_TEXTS} texts: lower one."
            )

    @property
    def neighbors(self) -> Neighbors | None:  # type: ignore[override]
        if self.retrieved is None:
            return None
        numbers = (self.max_retrieved_images, self.max_retrieved_texts, self.max_retrieved_captions)
        return Neighbors(RETRIEVAL_READER, self.retrieved, dict(zip(RETRIEVED, numbers, strict=True)))

    def check(self, special: SpecialTokens, sequence: int) -> None:
        super().check(special, sequence)
        if self.meanings is not None and (max_id := load_meanings(self.meanings).max_id) >= special.size:
            raise UserError(
                f"meanings: {self.meanings} has ids up to {max_id}, but the tokenizer has {special.size} ids: the file "
                f"was made with another tokenizer; {REMEDY}."
            )

    def label_fields(self, sequence: int) -> dict[str, BatchField]:
        return {
            "image_starts": BatchField((MAX_COMPARED_IMAGES,)),
            "text_starts": BatchField((MAX_COMPARED_TEXTS,)),
            "num_positive_texts": BatchField(()),
        }

    def add_labels(self, sample: Sample, text: np.ndarray, regions: Regions, context: SampleContext) -> Sample:
        return sample

    def num_own_regions(self, piece: Sequence[DocumentSlice]) -> int:
        return self._split_regions(len(_retrieved_slices(piece, "images")))

    def _split_regions(self, num_retrieved: int) -> int:
        """Return the number of region positions for the pair's own image beside retrieved ones."""
        return self.regions - num_retrieved * (self.regions // (1 + num_retrieved))

    @property
    def single_pair(self) -> Self:
        """Return the objective for a single pair, with as many regions for its image as beside retrieved ones: more
        regions than in training give worse vectors."""
        num_retrieved = 0 if self.retrieved is None else self.max_retrieved_images
        return replace(self, retrieved=None, meanings=None, regions=self._split_regions(num_retrieved))

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        assert isinstance(piece, list)
        sample, words = super().make_sample(piece, context), self.text_length(context.sequence)
        caption = sample["tokens"][: int((sample["document_ids"][:words] > 0).sum())].copy()
        positives, negatives = self._rewrite_caption(caption[1:-1], context.rng)
        positives += [part.tokens for part in _retrieved_slices(piece, "texts")]
        negatives += [part.tokens for part in _retrieved_slices(piece, "captions")]
        texts = self._add_texts(sample, caption, positives, negatives, context)
        return {**sample, **texts, **self._add_images(sample, piece, words)}

    def _add_texts(
        self,
        sample: Sample,
        caption: np.ndarray,
        positives: Sequence[np.ndarray],
        negatives: Sequence[np.ndarray],
        context: SampleContext,
    ) -> Sample:
        """Append texts after the caption while they fit, each a document. Return their positions and the number of
        positives."""
        words, special = self.text_length(context.sequence), context.special
        texts, left = [caption], words - len(caption)
        num_positives = 1
        for is_positive, candidates in ((True, positives), (False, negatives)):
            for tokens in candidates:
                text = np.concatenate([[special.cls], tokens, [special.sep]])
                if len(text) <= left:
                    texts.append(text)
                    left -= len(text)
                    num_positives += is_positive
        lengths = [*map(len, texts)]
        assert special.pad is not None
        sample["tokens"][:words] = pad_pieces(texts, words, special.pad)
        sample["positions"][:words] = pad_pieces([np.arange(length) for length in lengths], words, 0)
        # The image is document 1; documents do not attend to each other.
        sample["document_ids"][:words] = pad_pieces([np.full(n, 2 + at) for at, n in enumerate(lengths)], words, 0)
        starts = np.cumsum([0, *lengths[:-1]])
        return {
            "text_starts": pad_pieces([starts], MAX_COMPARED_TEXTS, IGNORED),
            "num_positive_texts": np.array(num_positives, dtype=np.int64),
        }

    def _add_images(self, sample: Sample, piece: Sequence[DocumentSlice], words: int) -> Sample:
        """Add the retrieved images to a sample, after the image of the pair. Each image is a document of its own, which
        the others do not attend to. Return the first position of each image."""
        images, own = _retrieved_slices(piece, "images"), self.num_own_regions(piece)
        share, starts = self.regions // (1 + len(images)), [words]
        for index, image in enumerate(images):
            regions, at = self._read_regions(image, share), own + index * share
            sample["document_ids"][words + at : words + at + len(regions)] = 2 + MAX_COMPARED_TEXTS + index
            sample["region_features"][at : at + len(regions)] = regions.features
            sample["region_boxes"][at : at + len(regions)] = regions.boxes
            starts.append(words + at)
        return {"image_starts": pad_pieces([np.array(starts)], MAX_COMPARED_IMAGES, IGNORED)}

    def _rewrite_caption(
        self, caption: np.ndarray, rng: np.random.Generator
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return tokens of paraphrases of a caption, and of negative rewritings."""
        if self.meanings is None:
            return [], []
        table, number = load_meanings(self.meanings), self.max_rewritten_negatives
        words, rewriter = table.words(caption), table.rewriter
        positives = rewriter.paraphrases(words, rng, number=self.max_paraphrases) if self.max_paraphrases else []
        objects = rewriter.negatives(words, rng, number=number // 2, with_attributes=True) if number > 1 else []
        left = number - len(objects)
        phrases = [text for text in rewriter.negatives(words, rng, number=left) if text not in objects] if left else []
        return [*map(join_words, positives)], [*map(join_words, (*phrases, *objects))]


def _retrieved_slices(piece: Sequence[DocumentSlice], kind: str) -> list[DocumentSlice]:
    """Return the slices of the documents that were retrieved as one kind of `RETRIEVED`."""
    return [part for part in piece if part.retrieved == kind]
