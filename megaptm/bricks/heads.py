"""Costs of heads, and the batch fields that they require."""

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
from megaptm.families import Registry, contributions
from megaptm.plugins import is_plugin
from megaptm.spec import ModelSpec


class LanguageHeadBrick(HeadBrick):
    """Language model head: next token at every position, by the token table or a table of its own."""

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
        # One bias per token, and one row with a bias per cluster after the first.
        return self.spec.vocabulary + len(self.spec.size.cutoffs) * (self.spec.size.table_width + 1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Return the bytes of all clusters, computed one after the other and replicated on tensor ranks, with the
        gradients of all their tables."""
        if not self.spec.size.cutoffs:
            return super().loss_bytes(positions, element, tensor=tensor, chunked=chunked)
        products = projections(self.spec)
        kept = sum(table_gradient_bytes(positions, inputs, outputs, element) for inputs, outputs in products)
        largest = max(outputs for _, outputs in products)
        hidden = 2 * positions * self.width * element
        return LossBytes(hidden + kept, min(positions, ROWS_PROJECTED) * largest * (element + 4))

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Each cluster projects all positions: see `models.adaptive`."""
        if not self.spec.size.cutoffs:
            return super().projections
        products = projections(self.spec)
        # Projections to the narrower tables' widths.
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
    """Masked language model head (BERT): linear layer, norm, token table, one bias per token. Reads only predicted
    positions."""

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
    """Bidirectional language model head (ELMo, arXiv:1802.05365, 3.1): next token in each direction, each by its own
    stack, with a shared table and bias. Papers do not count it."""

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
        """Projections of both directions; on sampled tokens if the family has `negatives`."""
        words = self.spec.family.negatives or self.spec.vocabulary
        return [(self.spec.size.table_width, words)] * 2

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Return the bytes. With sampled tokens: logits, two float32 copies of them, and vectors of labels and
        samples."""
        if not (drawn := self.spec.family.negatives):
            return super().loss_bytes(2 * positions, element, tensor=tensor, chunked=chunked)
        width = self.spec.size.table_width
        return LossBytes(2 * positions * (drawn * (element + 8) + 3 * width * element) + 2 * drawn * width * element)


class PermutationHeadBrick(HeadBrick):
    """Permutation language model head (XLNet): tokens predicted in an order from the query stream, by token table and
    bias."""

    name = "permutation-lm"
    predicted_only = True
    rows = 1

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}


class SpanBoundaryHeadBrick(HeadBrick):
    """Span boundary head (SpanBERT, arXiv:1907.10529, 3.2): tokens of a masked span from the two positions around it.
    Two layers with norms, then token table and bias."""

    name = "span-boundary"
    answers = "span_labels"
    predicted_only = True
    rows = 1
    offsets: ClassVar[int] = 20
    """Positions of a span that are distinguished: `objectives.span_boundary.LONGEST`."""
    offset_width: ClassVar[int] = 200
    """Width of the position table, for any model width (as in the released code)."""

    @property
    def maps(self) -> Mapping[str, Map]:
        width, table = self.width, self.table_width
        return {"first": Map(2 * width + self.offset_width, width, True), "second": Map(width, table, True)}

    @property
    def others(self) -> int:
        norms = sum(norm_parameters(self.block, one.outputs) for one in self.maps.values())
        return self.offsets * self.offset_width + norms


class RowClassHeadBrick(HeadBrick):
    """Base of heads that classify a text or pair of texts, from the first position through BERT's pooler."""

    projects = False
    pooler_published: ClassVar[bool] = False
    """Whether papers count this head's pooler: true for one head of a family."""

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
    """Base of heads that classify each token."""

    projects = False

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"classify": Map(self.width, self.classes, True)}


class ReplacedHeadBrick(HeadBrick):
    """Replaced token detection (ELECTRA, arXiv:2003.10555, section 2): linear layer and one logit per position."""

    name = "replaced-token"
    answers = "replaced"
    projects = False
    judges_draws = True

    @property
    def maps(self) -> Mapping[str, Map]:
        width = self.width
        return {"transform": Map(width, width, True), "classify": Map(width, 1, True)}


class NextSentenceHeadBrick(RowClassHeadBrick):
    """Next sentence prediction: whether the second text follows the first (BERT, arXiv:1810.04805, 3.1)."""

    name = "next-sentence"
    answers = "next_sentence"
    pooler_published = True


class SentenceOrderHeadBrick(RowClassHeadBrick):
    """Sentence order prediction: whether two segments of a document are in order (ALBERT, arXiv:1909.11942, 3.1)."""

    name = "sentence-order"
    answers = "sentence_order"
    pooler_published = True


class SentenceDistanceHeadBrick(RowClassHeadBrick):
    """Sentence distance: neighbors, same document, or different documents (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-distance"
    answers = "sentence_distance"
    classes = 3


class DialogueHeadBrick(RowClassHeadBrick):
    """Dialogue language model: whether all turns are of one dialogue (ERNIE 1.0, arXiv:1904.09223, 3.3)."""

    name = "dialogue"
    answers = "dialogue"


class DiscourseHeadBrick(RowClassHeadBrick):
    """Discourse relation: which of 174 connectives joined two texts, by labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3; Discovery, arXiv:1903.11850)."""

    name = "discourse"
    answers = "discourse"
    classes = 174


class RelevanceHeadBrick(RowClassHeadBrick):
    """IR relevance: whether a title was clicked for a query, only shown, or neither, by labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3)."""

    name = "relevance"
    answers = "relevance"
    classes = 3


class SentenceReorderingHeadBrick(RowClassHeadBrick):
    """Sentence reordering: order of up to three segments of a document (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-reordering"
    answers = "sentence_reordering"
    classes = 9
    pooler_published = True


class ImageTextMatchHeadBrick(RowClassHeadBrick):
    """ITM: whether an image's regions match a text (UNITER, arXiv:1909.11740, section 3.2)."""

    name = "itm"
    answers = "matched"
    pooler_published = True


class CapitalizationHeadBrick(TokenClassHeadBrick):
    """Capitalization prediction: whether a token's word is capitalized (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    name = "capitalization"
    answers = "capitalization"


class TokenDocumentHeadBrick(TokenClassHeadBrick):
    """Token-document relation: whether a token also occurs in the rest of its document (ERNIE 2.0, arXiv:1907.12412,
    4.2.1)."""

    name = "token-document"
    answers = "token_document"


_HEADS: dict[str, type[HeadBrick]] = {
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
HEADS: Registry[type[HeadBrick]] = Registry(
    _HEADS, lambda: ((head.name, head) for heads in contributions("heads", "HEADS") for head in heads)
)
"""Heads by name."""

H = TypeVar("H", bound=type[HeadBrick])


def register_head(head: H) -> H:
    """Register the brick of a user-defined head, so that families and objectives can name it. A class decorator."""
    if missing := sorted(getattr(head, "__abstractmethods__", ())):
        raise TypeError(f"{head.__name__} does not say what it costs: give it {' and '.join(missing)}.")
    if not is_plugin(head.module):
        raise TypeError(f"{head.__name__}.module ({head.module!r}) must be written `package.module:NAME`.")
    if head.contrasts and not head.features:
        raise TypeError(f"{head.__name__} does not say what its comparison costs: give it `features`, a row's numbers.")
    known = HEADS.register(head.name, head)
    if (known.__module__, known.__qualname__) != (head.__module__, head.__qualname__):
        raise TypeError(f"there is a head called {head.name!r} already: {known.__name__}.")
    return head


def heads(spec: ModelSpec) -> dict[str, HeadBrick]:
    """Return the heads of the family, by name."""
    if unknown := set(spec.family.heads) - set(HEADS):
        raise UserError(f"{spec.name}: heads {sorted(unknown)} are unknown; use some of {', '.join(HEADS)}.")
    return {name: HEADS[name](spec) for name in spec.family.heads}
