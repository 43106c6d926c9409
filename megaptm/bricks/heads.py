"""Heads: what reads the last layer, in numbers, and what each asks of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

from megaptm.bricks.adaptive import cluster_maps, projections
from megaptm.bricks.brick import Map
from megaptm.bricks.contrast_heads import CrossModalHeadBrick, InfoMaxHeadBrick
from megaptm.bricks.head import ROWS_PROJECTED, HeadBrick, LossBytes, table_gradient_bytes
from megaptm.bricks.image_heads import ImageLabelHeadBrick, ImageTextHeadBrick, MaskedPatchHeadBrick
from megaptm.bricks.layer import norm_parameters
from megaptm.bricks.region_heads import (
    RegionDistributionHeadBrick,
    RegionFeatureHeadBrick,
    RegionLabelHeadBrick,
    WordRegionHeadBrick,
)
from megaptm.errors import UserError
from megaptm.plugins import is_plugin
from megaptm.spec import ModelSpec


class LanguageHeadBrick(HeadBrick):
    """The next token at every position: the stream times the token table, or a table of its own."""

    name = "lm"
    next_token = True

    @property
    def maps(self) -> Mapping[str, Map]:
        width, table = self.width, self.table_width
        if self.spec.size.cutoffs:
            return {"narrow": Map(width, table, False)} if cluster_maps(self.spec) else {}
        return {} if table == width else {"narrow": Map(width, table, True)}

    @property
    def others(self) -> int:
        if not self.spec.size.cutoffs:
            return 0
        # A bias a word, and a row with a bias for each cluster but the first.
        return self.spec.vocabulary + len(self.spec.size.cutoffs) * (self.spec.size.table_width + 1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Of clusters one after another, whole on each tensor rank, and the gradients of all their tables."""
        if not self.spec.size.cutoffs:
            return super().loss_bytes(positions, element, tensor=tensor, chunked=chunked)
        products = projections(self.spec)
        kept = sum(table_gradient_bytes(positions, inputs, outputs, element) for inputs, outputs in products)
        largest = max(outputs for _, outputs in products)
        hidden = 2 * positions * self.width * element
        return LossBytes(hidden + kept, min(positions, ROWS_PROJECTED) * largest * (element + 4))

    @property
    def projections(self) -> list[tuple[int, int]]:
        """By clusters, each projects all positions: see `models.adaptive`."""
        if not self.spec.size.cutoffs:
            return super().projections
        products = projections(self.spec)
        # What makes the narrower tables' inputs.
        maps = [(self.width, width) for width, _ in products[1:]] if cluster_maps(self.spec) else []
        return [*products, *maps]

    @property
    def rows(self) -> int:
        if self.spec.size.cutoffs:
            return 0
        own = 0 if self.spec.family.tied else self.table_width
        return own + self.spec.family.output_bias

    @property
    def published(self) -> int:
        return self.parameters


class MaskedHeadBrick(HeadBrick):
    """Masked tokens: a transform, a norm, the token table and a bias a word (BERT). Reads predicted positions alone."""

    name = "mlm"
    predicted_only = True
    rows = 1

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"transform": Map(self.width, self.table_width, True)}

    @property
    def others(self) -> int:
        return norm_parameters(self.block, self.table_width)


class BidirectionalHeadBrick(HeadBrick):
    """The next token of a text, and of the same or another one read from its end, each by a stack of its own: a table
    and a bias a word that both have in common (ELMo, arXiv:1802.05365, 3.1). Papers leave it out."""

    name = "bidirectional-lm"
    next_token = True

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if len(self.readings) != 2 or spec.family.tied:
            raise UserError(
                f"{spec.name}: the {self.name} head reads two stacks, by a table of its own: give it two in `reads`, "
                "and tied=False."
            )

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}

    @property
    def rows(self) -> int:
        return self.spec.size.table_width + 1

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Of both directions, on words that are drawn where such stand for all."""
        words = self.spec.family.negatives or self.spec.vocabulary
        return [(self.spec.size.table_width, words)] * 2

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Where words are drawn: logits, and their float32 form twice; vectors of what is right and what is drawn."""
        if not (drawn := self.spec.family.negatives):
            return super().loss_bytes(2 * positions, element, tensor=tensor, chunked=chunked)
        width = self.spec.size.table_width
        return LossBytes(2 * positions * (drawn * (element + 8) + 3 * width * element) + 2 * drawn * width * element)


class PermutationHeadBrick(HeadBrick):
    """Words that are asked in an order, from queries beside the text: the token table and a bias a word (XLNet)."""

    name = "permutation-lm"
    predicted_only = True
    rows = 1

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}


class SpanBoundaryHeadBrick(HeadBrick):
    """Tokens of a masked span from the two positions around it (SpanBERT, arXiv:1907.10529, 3.2): two layers, each with
    a norm, then the token table and a bias a word."""

    name = "span-boundary"
    answers = "span_labels"
    predicted_only = True
    rows = 1
    offsets: ClassVar[int] = 20
    """Places of a span that are told apart: `objectives.span_boundary.LONGEST`."""
    offset_width: ClassVar[int] = 200
    """Width of the table that tells them apart, whatever the model's (the released code)."""

    @property
    def maps(self) -> Mapping[str, Map]:
        width, table = self.width, self.table_width
        return {"first": Map(2 * width + self.offset_width, width, True), "second": Map(width, table, True)}

    @property
    def others(self) -> int:
        norms = sum(norm_parameters(self.block, one.outputs) for one in self.maps.values())
        return self.offsets * self.offset_width + norms


class RowClassHeadBrick(HeadBrick):
    """Base of heads that choose among classes of a row of texts, read at the first position through BERT's pooler."""

    projects = False
    pooler_published: ClassVar[bool] = False
    """Whether papers count this head's pooler: of a family's heads, one's."""

    @property
    def maps(self) -> Mapping[str, Map]:
        width = self.width
        return {"pooler": Map(width, width, True), "classify": Map(width, self.classes, True)}

    @property
    def published(self) -> int:
        return self.maps["pooler"].whole if self.pooler_published else 0

    def mapped(self, positions: int) -> int:
        return 1


class TokenClassHeadBrick(HeadBrick):
    """Base of heads that choose among classes of each token."""

    projects = False

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"classify": Map(self.width, self.classes, True)}


class ReplacedHeadBrick(HeadBrick):
    """Whether each token was replaced: a transform and a number a position (ELECTRA, arXiv:2003.10555, section 2)."""

    name = "replaced-token"
    answers = "replaced"
    projects = False
    judges_draws = True

    @property
    def maps(self) -> Mapping[str, Map]:
        width = self.width
        return {"transform": Map(width, width, True), "classify": Map(width, 1, True)}


class NextSentenceHeadBrick(RowClassHeadBrick):
    """Whether the second text follows the first (BERT, arXiv:1810.04805, 3.1)."""

    name = "next-sentence"
    answers = "next_sentence"
    pooler_published = True


class SentenceOrderHeadBrick(RowClassHeadBrick):
    """Whether two stretches of a document are in their order (ALBERT, arXiv:1909.11942, 3.1)."""

    name = "sentence-order"
    answers = "sentence_order"
    pooler_published = True


class SentenceDistanceHeadBrick(RowClassHeadBrick):
    """Whether two stretches are neighbors, of one document, or of two (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-distance"
    answers = "sentence_distance"
    classes = 3


class DialogueHeadBrick(RowClassHeadBrick):
    """Whether turns are of one dialogue, or one of them of another (ERNIE 1.0, arXiv:1904.09223, 3.3)."""

    name = "dialogue"
    answers = "dialogue"


class DiscourseHeadBrick(RowClassHeadBrick):
    """Which of 174 connectives stood between two texts, by the labels of a corpus (ERNIE 2.0, arXiv:1907.12412, 4.2.3;
    Discovery, arXiv:1903.11850)."""

    name = "discourse"
    answers = "discourse"
    classes = 174


class RelevanceHeadBrick(RowClassHeadBrick):
    """Whether a title was clicked for a query, only shown, or neither, by the labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3)."""

    name = "relevance"
    answers = "relevance"
    classes = 3


class SentenceReorderingHeadBrick(RowClassHeadBrick):
    """The order in which up to three stretches of a document stand (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-reordering"
    answers = "sentence_reordering"
    classes = 9
    pooler_published = True


class ImageTextMatchHeadBrick(RowClassHeadBrick):
    """ITM, whether an image's regions belong to a text (UNITER, arXiv:1909.11740, section 3.2)."""

    name = "itm"
    answers = "matched"
    pooler_published = True


class CapitalizationHeadBrick(TokenClassHeadBrick):
    """Of each token whether its word began with a capital letter (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    name = "capitalization"
    answers = "capitalization"


class TokenDocumentHeadBrick(TokenClassHeadBrick):
    """Of each token whether the rest of its document has it as well (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    name = "token-document"
    answers = "token_document"


HEADS: dict[str, type[HeadBrick]] = {
    head.name: head
    for head in (
        *(LanguageHeadBrick, MaskedHeadBrick, SpanBoundaryHeadBrick, NextSentenceHeadBrick, SentenceOrderHeadBrick),
        *(BidirectionalHeadBrick, PermutationHeadBrick),
        *(ReplacedHeadBrick, CapitalizationHeadBrick, TokenDocumentHeadBrick),
        *(SentenceReorderingHeadBrick, SentenceDistanceHeadBrick, DialogueHeadBrick),
        *(DiscourseHeadBrick, RelevanceHeadBrick),
        *(ImageLabelHeadBrick, MaskedPatchHeadBrick, ImageTextHeadBrick),
        *(ImageTextMatchHeadBrick, WordRegionHeadBrick, CrossModalHeadBrick, InfoMaxHeadBrick),
        *(RegionFeatureHeadBrick, RegionLabelHeadBrick, RegionDistributionHeadBrick),
    )
}


H = TypeVar("H", bound=type[HeadBrick])


def register_head(head: H) -> H:
    """Make a head of the user's own one that families name, and losses of objectives; a decorator of its brick."""
    if missing := sorted(getattr(head, "__abstractmethods__", ())):
        raise TypeError(f"{head.__name__} does not say what it costs: give it {' and '.join(missing)}.")
    if not is_plugin(head.module):
        raise TypeError(f"{head.__name__}.module ({head.module!r}) must be written `package.module:NAME`.")
    if head.contrasts and not head.features:
        raise TypeError(f"{head.__name__} does not say what its comparison costs: give it `features`, a row's numbers.")
    known = HEADS.setdefault(head.name, head)
    if (known.__module__, known.__qualname__) != (head.__module__, head.__qualname__):
        raise TypeError(f"there is a head called {head.name!r} already: {known.__name__}.")
    return head


def heads(spec: ModelSpec) -> dict[str, HeadBrick]:
    """The family's heads by name."""
    if unknown := set(spec.family.heads) - set(HEADS):
        raise UserError(f"{spec.name}: heads {sorted(unknown)} are unknown; use some of {', '.join(HEADS)}.")
    return {name: HEADS[name](spec) for name in spec.family.heads}
